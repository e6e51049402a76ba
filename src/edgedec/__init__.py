"""Language models on this machine: load a bundle, generate text.

import edgedec

with edgedec.load("smollm2.edgedec") as engine:
    print(engine.generate([{"role": "user", "content": "Why is the sky blue?"}]).text)
"""

import os
import typing

from edgedec.models.errors import (
    BundleError,
    CheckpointError,
    ConfigError,
    EdgedecError,
    PromptTooLongError,
    SessionError,
    UnsupportedModelError,
)

# Unless a variable forbids it before the import, ONNX Runtime reports to its maker which models
# run, by name and by hash, and how. What runs on a device is nobody else's business.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if typing.TYPE_CHECKING:
    from edgedec.exporting import export
    from edgedec.loading import load
    from edgedec.runtime.config import GenerationConfig, SamplingConfig, SpeculationConfig
    from edgedec.runtime.config.suggestion import SuggestConfig
    from edgedec.runtime.drafting.stats import DecodeStats
    from edgedec.runtime.engine.conversation import Conversation
    from edgedec.runtime.engine.engine import Engine
    from edgedec.runtime.engine.result import GenerationResult
    from edgedec.runtime.engine.stream import Stream
    from edgedec.runtime.opening.options import EngineOptions

    __version__: str
else:
    _ROOMS = {
        "Conversation": "engine.conversation",
        "DecodeStats": "drafting.stats",
        "Engine": "engine.engine",
        "EngineOptions": "opening.options",
        "GenerationConfig": "config",
        "GenerationResult": "engine.result",
        "SamplingConfig": "config",
        "SpeculationConfig": "config",
        "Stream": "engine.stream",
        "SuggestConfig": "config.suggestion",
    }

    def __getattr__(name):
        # Importing the runtime, or reading the version, delays those who do not ask for it.
        if name not in __all__:
            raise AttributeError(f"module 'edgedec' has no attribute {name!r}")
        if name == "__version__":
            from edgedec.models.installation import distribution_version

            return distribution_version()
        if name == "load":
            from edgedec.loading import load

            return load
        from importlib import import_module

        if name == "export":
            return import_module("edgedec.export")  # a package that can be called
        return getattr(import_module(f"edgedec.runtime.{_ROOMS[name]}"), name)

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
    "EngineOptions",
    "GenerationConfig",
    "GenerationResult",
    "PromptTooLongError",
    "SamplingConfig",
    "SessionError",
    "SpeculationConfig",
    "Stream",
    "SuggestConfig",
    "UnsupportedModelError",
    "__version__",
    "export",
    "load",
]
