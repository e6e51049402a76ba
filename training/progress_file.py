"""Where a training stands, in a file from which it goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from edgedec.system.files import replacing

_KEY = "key"


class ProgressFile:
    """Arrays of one training; those of another are not used, and replaced."""

    def __init__(self, path: Path, key: Sequence[object]) -> None:
        """key: all that decides what becomes of the training."""
        self.path = path
        self._key = hashlib.sha256(repr(tuple(key)).encode()).hexdigest()

    def load(self) -> dict[str, npt.NDArray[Any]] | None:
        """Returns the arrays of an earlier run of the same training; None without one."""
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                if str(archive[_KEY]) == self._key:
                    return {name: archive[name] for name in archive.files if name != _KEY}
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            pass
        return None

    def save(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Writes the file; an older one is replaced when all of the new one is there.

        Raises:
            OSError: The disk is full.
        """
        with replacing(self.path) as file:
            np.savez(file, allow_pickle=False, **{_KEY: np.array(self._key)}, **arrays)
