"""What trainings of heads, of exits and of draft models are asked for alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from edgedec.models.errors import ConfigError
from edgedec.models.installation import install_command
from edgedec.system.processors import physical_cores

_READING = 0.5
"""Share of the minutes after which no more is read."""


Epochs = Annotated[int, typer.Option(metavar="N", min=1, help="Passes over the texts.")]
LearningRate = Annotated[float, typer.Option(metavar="X", min=0.0, help="Peak learning rate.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing bundle.")]


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """What is read, how long it is learned from, and what is made of it."""

    corpus: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Text file, or folder of text files. Repeatable."),
    ] = None
    max_tokens: Annotated[
        int, typer.Option(metavar="N", min=1000, help="Maximum tokens to read.")
    ] = 200_000
    n_self: Annotated[
        int,
        typer.Option(
            "--self",
            metavar="N",
            min=0,
            help="How many of these the model writes itself.",
        ),
    ] = 0
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.jsonl", help="Prompts for --self, in the format of `bench`. Repeatable."
        ),
    ] = None
    written: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Texts that `fleet write` had the model write, in place of --self.",
        ),
    ] = None
    temperature: Annotated[
        float,
        typer.Option(
            metavar="T", min=0.0, help="Temperature for --self. 0 takes the likeliest tokens."
        ),
    ] = 0.7
    parallel: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Write N texts of --self at a time. The texts are the same (default: the fastest "
            "number).",
        ),
    ] = None
    epochs: Epochs = 6
    minutes: Annotated[
        float | None,
        typer.Option(metavar="N", min=0.0, help="Maximum minutes in total (default: no limit)."),
    ] = None
    vocabulary: Annotated[
        int, typer.Option(metavar="N", min=64, help="Number of tokens that drafts can use.")
    ] = 8192
    learning_rate: LearningRate = 1e-3
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of all random choices.")] = 0
    features: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder that keeps the hidden states for other trainings (default: "
            "removed at the end).",
        ),
    ] = None
    cache_mb: Annotated[
        int, typer.Option(metavar="N", min=1, help="Maximum disk space for hidden states, in MB.")
    ] = 4000
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="CPU threads (default: one per core).")
    ] = None
    force: Force = False

    def check(self, replay: tuple[Path, ...] = ()) -> None:
        """Raises a ConfigError where there is nothing to learn from; replay: other texts."""
        if not (self.corpus or replay or self.prompts or self.written):
            raise ConfigError(
                "there is nothing to learn from: name texts with --corpus or --from, or "
                "prompts with --prompts and --self"
            )
        if self.written is not None and (self.n_self or self.prompts):
            raise ConfigError(
                "--written has what the model wrote already: leave out --self and --prompts"
            )
        if self.prompts and not self.n_self:
            raise ConfigError(
                "--prompts are for what the model writes itself: say how much, --self"
            )

    @property
    def n_threads(self) -> int:
        """Threads to compute with."""
        return self.threads or physical_cores()


class Clock:
    """Says when a training is over: its minutes are, counted from now on, or somebody stops it."""

    def __init__(self, minutes: float | None, is_stopping: Callable[[], bool]) -> None:
        """minutes: None where there is no end.

        Raises:
            ConfigError: ``minutes`` is no number.
        """
        if minutes is not None and math.isnan(minutes):
            raise ConfigError("--minutes is nan, expected a number: leave it out for no limit")
        self.is_stopping = is_stopping
        self._started_s = time.monotonic()
        self._most_s = math.inf if minutes is None else 60 * minutes

    def is_over(self) -> bool:
        """Says whether nothing more may be done."""
        return self._is_past(1.0)

    def is_reading_over(self) -> bool:
        """Says whether nothing more may be read, which leaves time to learn from it."""
        return self._is_past(_READING)

    def _is_past(self, share: float) -> bool:
        return time.monotonic() - self._started_s > share * self._most_s or self.is_stopping()


@contextmanager
def needs_train_extra() -> Iterator[None]:
    """Says what to install where an import inside fails.

    Raises:
        ConfigError: A package of the extra ``train`` is missing.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"training needs {error.name}, which is not installed: {install_command('train')}"
        ) from None


def check_exit(layer: int, n_layers: int) -> None:
    """Raises a ConfigError unless some of ``n_layers`` run before an exit behind ``layer``."""
    if not 0 < layer < n_layers:
        raise ConfigError(f"--exit is {layer}, expected 1 to {n_layers - 1} of {n_layers} layers")
