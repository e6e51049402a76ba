"""Bundle to tokens: load a bundle, generate text."""

from edgedec.runtime.config import (
    GenerationConfig,
    SamplingConfig,
    SpeculationConfig,
    SuggestConfig,
)
from edgedec.runtime.conversation import Conversation
from edgedec.runtime.engine import Engine, LoadedModel, load
from edgedec.runtime.generation import Stream
from edgedec.runtime.machine import peak_rss_mb, physical_cores
from edgedec.runtime.result import GenerationResult
from edgedec.runtime.session import ModelSession, Rows, TokenTree
from edgedec.runtime.stats import DecodeStats

__all__ = [
    "Conversation",
    "DecodeStats",
    "Engine",
    "GenerationConfig",
    "GenerationResult",
    "LoadedModel",
    "ModelSession",
    "Rows",
    "SamplingConfig",
    "SpeculationConfig",
    "Stream",
    "SuggestConfig",
    "TokenTree",
    "load",
    "peak_rss_mb",
    "physical_cores",
]
