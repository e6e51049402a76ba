"""Bundle to tokens: load a bundle, generate text."""

from edgedec.runtime.config import (
    GenerationConfig,
    SamplingConfig,
    SpeculationConfig,
    SuggestConfig,
)
from edgedec.runtime.drafting.stats import DecodeStats
from edgedec.runtime.engine import Engine
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.runtime.requests.conversation import Conversation
from edgedec.runtime.requests.loaded import LoadedModel
from edgedec.runtime.requests.result import GenerationResult
from edgedec.runtime.requests.stream import Stream
from edgedec.runtime.sessions.rows import Rows
from edgedec.runtime.sessions.sequence import TokenSequence
from edgedec.runtime.sessions.token_tree import TokenTree
from edgedec.system.processors import physical_cores
from edgedec.system.usage import peak_rss_mb

__all__ = [
    "Conversation",
    "DecodeStats",
    "Engine",
    "EngineOptions",
    "GenerationConfig",
    "GenerationResult",
    "LoadedModel",
    "Rows",
    "SamplingConfig",
    "SpeculationConfig",
    "Stream",
    "SuggestConfig",
    "TokenSequence",
    "TokenTree",
    "load",
    "peak_rss_mb",
    "physical_cores",
]
