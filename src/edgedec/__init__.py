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

if typing.TYPE_CHECKING:
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
else:

    def __getattr__(name):
        # Importing the runtime, or reading the version, delays those who do not ask for it.
        from importlib import import_module, metadata

        if name == "__version__":
            return metadata.version("edgedec")
        if name in __all__:
            return getattr(import_module("edgedec.runtime"), name)
        raise AttributeError(f"module 'edgedec' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})


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
