"""How a run of `edgedec bench` is to be written, whatever it measures."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from edgedec.apps.measuring.loop import Measurement
from edgedec.apps.results.recording import Recorder, SaveOptions
from edgedec.models.errors import ConfigError
from edgedec.models.installation import install_command


class Output(StrEnum):
    """How results are written."""

    MD = "md"
    JSON = "json"
    CSV = "csv"
    JSONL = "jsonl"


@dataclass(frozen=True)
class Printing:
    """plot: where to draw a picture. allow_noise: disturbed results are no failure.

    recorder: keeps results, if that was asked for.
    """

    output: Output = Output.MD
    plot: Path | None = None
    allow_noise: bool = False
    recorder: Recorder = field(default_factory=lambda: Recorder(SaveOptions()))


def find_plotter(module: str, path: Path | None) -> Any:
    """Returns the function of a module below `edgedec.apps` that draws; None for no ``path``.

    Raises:
        ConfigError: matplotlib is missing, or the picture cannot be, which had better be known
            before anything runs.
    """
    if path is None:
        return None
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"cannot draw {path}: there is no folder {path.parent}")
    try:
        from edgedec.apps.bench.plot import PICTURES

        draw = importlib.import_module(f"edgedec.apps.{module}").draw
    except ImportError as error:
        raise ConfigError(
            f"--plot needs matplotlib ({error}): {install_command('plots')}"
        ) from None
    if path.suffix[1:].lower() not in PICTURES:
        raise ConfigError(f"cannot draw {path}: expected one of .{', .'.join(PICTURES)}")
    return draw


def parse_counts(given: str | None, default: str, option: str) -> tuple[int, ...]:
    """Returns the numbers written as ``1,2,4``, each once; anything else is a usage error."""
    text = default if given is None else given
    try:
        counts = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        counts = (-1,)
    if min(counts) < 0:
        raise typer.BadParameter(f"got {text!r}, expected numbers as in 1,2,4", param_hint=option)
    return counts


def refusal(measurement: Measurement) -> str:
    """Returns why a measurement is not printed, in one line."""
    noisy = measurement.noisy()
    name, reason = next(iter(noisy.items()))
    others = f" (and {len(noisy) - 1} more results)" if len(noisy) > 1 else ""
    return (
        f"the run was disturbed: {name}{others}: {reason}; end what else runs here and repeat, "
        "or print marked results with --allow-noise"
    )
