"""Bundle to tokens: load a bundle, generate text."""

from edgedec.runtime.config import (
    GenerationConfig,
    SamplingConfig,
    SpeculationConfig,
    SuggestConfig,
)
from edgedec.runtime.drafting.stats import DecodeStats
from edgedec.runtime.engine.conversation import Conversation
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.engine.stream import Stream
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
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
