"""Language models on this machine: load a bundle, generate text.

import edgedec

with edgedec.load("smollm2.edgedec") as engine:
    print(engine.generate([{"role": "user", "content": "Why is the sky blue?"}]).text)
"""

import typing

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

__version__: str

if not typing.TYPE_CHECKING:

    def __getattr__(name):
        # Only some ask for it, and reading it takes as long as importing half of this package.
        if name != "__version__":
            raise AttributeError(f"module 'edgedec' has no attribute {name!r}")
        from importlib import metadata

        return metadata.version("edgedec")


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
