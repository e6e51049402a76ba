"""What a fit has read so far, kept in a file beside the bundle until the maps are in it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile

import numpy as np

from edgedec.models.kv_maps import N_SINKS
from edgedec.system.files import replacing
from edgedec.training.kv_maps.kv_maps import Float32, RidgeSums, Scales

HELD_OUT = 8
"""Every so many windows one is not fitted to, but measured with."""

_SAVE_S = 60.0
"""Seconds of reading that a killed fit may lose."""

_MIN_READING = 10
"""Seconds of reading for each that writing the file takes."""

_COUNTS = "counts"


@dataclass
class ReadSoFar:
    """Sums over the windows read: those fitted to, and those only measured with.

    fitted, held_out: one for each regression. scales: of the first window, where features have any.
    """

    fitted: tuple[RidgeSums, ...]
    held_out: tuple[RidgeSums, ...]
    scales: Scales | None = None
    n_windows: int = 0
    n_tokens: int = 0

    @classmethod
    def nothing(cls, sizes: Iterable[tuple[int, int]]) -> Self:
        """Returns the sums before the first window. sizes: features and targets of each."""
        sizes = tuple(sizes)
        fitted, held_out = (tuple(RidgeSums(*size) for size in sizes) for _ in range(2))
        return cls(fitted, held_out)

    def add(self, parts: Iterable[tuple[Float32, Float32]], n_tokens: int) -> None:
        """Takes a window in: features and targets of each regression, shapes [T, D], [T, M]."""
        sums = self.held_out if self.n_windows % HELD_OUT == 1 else self.fitted
        for ridge, (features, targets) in zip(sums, parts, strict=True):
            ridge.add(features[N_SINKS:], targets[N_SINKS:])
        self.n_windows += 1
        self.n_tokens += n_tokens


Read = Callable[[list[int], ReadSoFar], Iterable[tuple[Float32, Float32]]]
"""From the tokens of a window to features and targets of each regression."""


@dataclass(frozen=True)
class CorpusWindows:
    """Windows of a corpus to fit maps on.

    report: called with the tokens read so far. file: keeps that, and has what an earlier run read
    of the same ``windows``.
    """

    windows: Iterable[list[int]]
    report: Callable[[int], None] = lambda n_tokens: None
    file: FitFile | None = None

    def sums(self, sizes: Iterable[tuple[int, int]], read: Read) -> ReadSoFar:
        """Returns the sums over the windows; those that the file has sums of are not read again.

        sizes: features and targets of each regression.

        Raises:
            OSError: The file cannot be written.
        """
        state = ReadSoFar.nothing(sizes) if self.file is None else self.file.load(sizes)
        for tokens in islice(self.windows, state.n_windows, None):
            state.add(read(tokens, state), len(tokens))
            self.report(state.n_tokens)
            if self.file is not None:
                self.file.save_sometimes(state)
        return state


class FitFile:
    """The file of a fit in progress; one of another fit is not used, and replaced."""

    def __init__(self, bundle: Path, key: Sequence[object]) -> None:
        """key: all that decides what is read, and what of it is summed."""
        self.path = bundle.absolute().with_name(f".{bundle.absolute().name}.fit.npz")
        self._key = hashlib.sha256(repr(key).encode()).hexdigest()
        self._saved_s = time.monotonic()
        self._save_s = _SAVE_S

    def load(self, sizes: Iterable[tuple[int, int]]) -> ReadSoFar:
        """Returns what an earlier run of the same fit read, nothing where there is none."""
        sizes = tuple(sizes)
        state = ReadSoFar.nothing(sizes)
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                if str(archive["key"]) != self._key:
                    return state
                for name, sums in _named(state):
                    sums.restore(archive, name)
                if "mean" in archive:
                    state.scales = Scales(archive["mean"], archive["deviation"])
                state.n_windows, state.n_tokens = (int(n) for n in archive[_COUNTS])
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            return ReadSoFar.nothing(sizes)
        return state

    def save_sometimes(self, state: ReadSoFar) -> None:
        """Writes the file where the last time is a while ago.

        Raises:
            OSError: The disk is full.
        """
        if time.monotonic() - self._saved_s >= self._save_s:
            self.save(state)

    def save(self, state: ReadSoFar) -> None:
        """Writes the file; an older one is replaced when all of the new one is there."""
        started_s = time.monotonic()
        arrays: dict[str, Any] = {
            "key": np.array(self._key),
            _COUNTS: np.array([state.n_windows, state.n_tokens]),
        }
        for name, sums in _named(state):
            arrays |= sums.arrays(name)
        if state.scales is not None:
            arrays |= {"mean": state.scales.mean, "deviation": state.scales.deviation}
        with replacing(self.path) as file:
            np.savez(file, **arrays)
        self._saved_s = time.monotonic()
        self._save_s = max(_SAVE_S, _MIN_READING * (self._saved_s - started_s))

    def remove(self) -> None:
        """Removes the file: the fit is done."""
        self.path.unlink(missing_ok=True)


def _named(state: ReadSoFar) -> Iterable[tuple[str, RidgeSums]]:
    """Returns all sums, each under a name of its own."""
    groups = (("fitted", state.fitted), ("held_out", state.held_out))
    return ((f"{name}_{i}", sums) for name, group in groups for i, sums in enumerate(group))
