"""What a fit has read so far, kept in a file beside the bundle until the maps are in it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile

import numpy as np

from edgedec.export.kv_maps import RidgeSums

_SAVE_S = 60.0
"""Seconds of reading that a killed fit may lose."""

_COUNTS = "counts"


@dataclass
class ReadSoFar:
    """Sums over the windows read: those fitted to, and those only measured with."""

    fitted: RidgeSums
    held_out: RidgeSums
    n_windows: int = 0
    n_tokens: int = 0

    @classmethod
    def nothing(cls, n_features: int, n_targets: int) -> Self:
        """Returns the sums before the first window."""
        return cls(RidgeSums(n_features, n_targets), RidgeSums(n_features, n_targets))


class FitFile:
    """The file of a fit in progress; one of another fit is not used, and replaced."""

    def __init__(self, bundle: Path, key: Sequence[object]) -> None:
        """key: all that decides what is read, and what of it is summed."""
        self.path = bundle.absolute().with_name(f".{bundle.absolute().name}.fit.npz")
        self._key = hashlib.sha256(repr(key).encode()).hexdigest()
        self._saved_s = time.monotonic()

    def load(self, n_features: int, n_targets: int) -> ReadSoFar:
        """Returns what an earlier run of the same fit read, nothing where there is none."""
        state = ReadSoFar.nothing(n_features, n_targets)
        try:
            with np.load(self.path, allow_pickle=False) as found:
                if str(found["key"]) != self._key:
                    return state
                state.fitted.restore(found, "fitted")
                state.held_out.restore(found, "held_out")
                state.n_windows, state.n_tokens = (int(n) for n in found[_COUNTS])
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            return ReadSoFar.nothing(n_features, n_targets)
        return state

    def save_sometimes(self, state: ReadSoFar) -> None:
        """Writes the file where the last time is a while ago.

        Raises:
            OSError: The disk is full.
        """
        if time.monotonic() - self._saved_s >= _SAVE_S:
            self.save(state)

    def save(self, state: ReadSoFar) -> None:
        """Writes the file; an older one is replaced when all of the new one is there."""
        arrays: dict[str, Any] = {
            "key": np.array(self._key),
            _COUNTS: np.array([state.n_windows, state.n_tokens]),
            **state.fitted.arrays("fitted"),
            **state.held_out.arrays("held_out"),
        }
        partial = self.path.with_suffix(".partial")
        try:
            with partial.open("wb") as file:
                np.savez(file, **arrays)
            partial.replace(self.path)
        finally:
            partial.unlink(missing_ok=True)
        self._saved_s = time.monotonic()

    def remove(self) -> None:
        """Removes the file: the fit is done."""
        self.path.unlink(missing_ok=True)
