"""Checkpoint to bundle, ahead of time: `pipeline.export(config.ExportConfig(...))`.

`edgedec.export` is this package, and what users call: ``edgedec.export(model, bundle)``.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """This package. Calling it is calling `edgedec.exporting.export`, the front door's function."""

    def __call__(self, *arguments: Any, **options: Any) -> Path:
        made: Path = import_module("edgedec.exporting").export(*arguments, **options)
        return made


sys.modules[__name__].__class__ = _CallablePackage
