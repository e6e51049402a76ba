"""How a run of `edgedec bench` is to be written, whatever it measures."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from edgedec.apps.measuring.loop import Measurement
from edgedec.apps.results.recording import Recorder, SaveOptions


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


def refusal(measurement: Measurement) -> str:
    """Returns why a measurement is not printed, in one line."""
    noisy = measurement.noisy()
    name, reason = next(iter(noisy.items()))
    others = f" (and {len(noisy) - 1} more results)" if len(noisy) > 1 else ""
    return (
        f"the run was disturbed: {name}{others}: {reason}; end what else runs here and repeat, "
        "or print marked results with --allow-noise"
    )
