"""Language models on this machine: load a bundle, generate text.

import edgedec

with edgedec.load("smollm2.edgedec") as engine:
    print(engine.generate([{"role": "user", "content": "Why is the sky blue?"}]).text)
"""

from importlib import metadata

from edgedec.models.errors import (
    BundleError,
    CheckpointError,
    ConfigError,
    EdgedecError,
    SessionError,
    UnsupportedModelError,
)
from edgedec.runtime import (
    Conversation,
    DecodeStats,
    Engine,
    GenerationConfig,
    GenerationResult,
    SamplingConfig,
    Stream,
    load,
)

__version__ = metadata.version("edgedec")

__all__ = [
    "BundleError",
    "CheckpointError",
    "ConfigError",
    "Conversation",
    "DecodeStats",
    "EdgedecError",
    "Engine",
    "GenerationConfig",
    "GenerationResult",
    "SamplingConfig",
    "SessionError",
    "Stream",
    "UnsupportedModelError",
    "__version__",
    "load",
]
