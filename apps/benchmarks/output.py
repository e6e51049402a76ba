"""How a run of `edgedec bench` is to be written, whatever it measures."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from edgedec.models.errors import ConfigError


class Output(StrEnum):
    """How results are written."""

    MD = "md"
    JSON = "json"
    CSV = "csv"
    JSONL = "jsonl"


@dataclass(frozen=True)
class Printing:
    """plot: where to draw a picture. allow_noise: disturbed results are no failure."""

    output: Output = Output.MD
    plot: Path | None = None
    allow_noise: bool = False


def find_plotter(module: str) -> Any:
    """Returns the function of a module below `edgedec.apps` that draws.

    Raises:
        ConfigError: matplotlib is missing, which had better be known before anything runs.
    """
    try:
        return importlib.import_module(f"edgedec.apps.{module}").draw
    except ImportError as error:
        raise ConfigError(
            f"--plot needs matplotlib ({error}): pip install matplotlib, or edgedec[plots]"
        ) from None
