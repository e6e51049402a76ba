"""KV rows of the beginnings of texts on the disk, for other processes and for the next start.

A text is cut into blocks of tokens. Each is a file in the form of a session. Its name is a hash of
model, group, layout and all tokens up to its end, so that texts which begin alike share files.
Nothing in a file is believed before its checksums, model, tokens and shapes are.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgedec.models.errors import ConfigError, SessionError
from edgedec.models.installation import distribution_version
from edgedec.runtime.sequences.state import SessionState, can_follow
from edgedec.system.files import is_private_folder

if TYPE_CHECKING:  # imported where a block is read or written: a short run has none
    from edgedec.runtime.sequences.session_file import Expected

BLOCK = 64
_ROLE, _SUFFIX = "target", ".kv"


def private_folder(path: Path) -> Path:
    """Returns ``path``, a folder for `PrefixFiles`; makes it if it is missing.

    Raises:
        ConfigError: It cannot be made, or others than its owner may look into it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {path}: {error.strerror}") from None
    if not is_private_folder(path):
        raise ConfigError(
            f"others may look into {path}, which is to hold texts: take the right from them "
            "(chmod 700), or name a folder of your own"
        )
    return path


class PrefixFiles:
    """A folder of blocks. The files used least recently go first where they are too many.

    The folder and all files are their owner's alone, for they reveal the texts. A folder
    that belongs to someone else, or that others may look into, is left alone.

    block: tokens of a file.
    """

    def __init__(self, folder: Path, max_bytes: int, block: int = BLOCK) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self.block = block

    def find(
        self, expected: Expected, group: str, text: Sequence[int], n_held: int
    ) -> list[SessionState]:
        """Returns what is known of the beginning of ``text``, in segments that follow one another.

        The first segment begins at token ``n_held`` or before. Damaged files are removed.

        Args:
            expected: Whose rows; its layout has to be known.
            n_held: Tokens whose rows the caller has.
        """
        if len(text) < self.block or not is_private_folder(self._folder):
            return []
        first = 0 if expected.look_back else n_held // self.block
        segments: list[SessionState] = []
        for path, stop in self._blocks(expected, group, text)[first:]:
            block = self._read(path, expected, text[stop - self.block : stop])
            if block is None:
                break
            segments.append(SessionState(tuple(text[:stop]), stop - self.block, block.kv_rows))
        while segments and not can_follow(segments, expected.look_back):
            segments.pop()
        return segments

    def insert(
        self,
        expected: Expected,
        group: str,
        text: Sequence[int],
        snapshot: Callable[[int, int], SessionState],
    ) -> None:
        """Writes the blocks of ``text`` that are no files yet; does nothing where that fails.

        snapshot: called with a number of tokens and how many of them come without rows.
        """
        if len(text) < self.block:
            return
        from edgedec.runtime.sequences.session_file import SavedModel, write_states

        with suppress(OSError, SessionError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_private_folder(self._folder):
                return
            for path, stop in self._blocks(expected, group, text):
                if not path.exists():
                    rows = snapshot(stop, stop - self.block).kv_rows
                    block_rows = {name: array[:, :, -self.block :] for name, array in rows.items()}
                    state = SessionState(tuple(text[stop - self.block : stop]), 0, block_rows)
                    saved = {_ROLE: SavedModel(expected.fingerprint, state)}
                    write_states(path, saved, is_durable=False)
            self._trim()

    def _blocks(
        self, expected: Expected, group: str, text: Sequence[int]
    ) -> list[tuple[Path, int]]:
        """Returns the files of the whole blocks of ``text``, each with the token where it ends."""
        key = (distribution_version(), expected.fingerprint, group, expected.layout)
        digest = hashlib.sha256(repr(key).encode())
        blocks = []
        for start, stop in pairwise(range(0, len(text) + 1, self.block)):
            digest.update(np.asarray(text[start:stop], np.int64).tobytes())
            blocks.append((self._folder / (digest.hexdigest() + _SUFFIX), stop))
        return blocks

    def _read(self, path: Path, expected: Expected, tokens: Sequence[int]) -> SessionState | None:
        """Returns a block, its file used just now; None if there is none that fits."""
        if not path.exists():
            return None
        from edgedec.runtime.sequences.session_file import read_states

        try:
            # Of layers with a window a block has what was there of its own tokens.
            state = read_states(path, {_ROLE: replace(expected, look_back=0)})[_ROLE].state
            if state.tokens != tuple(tokens):
                raise SessionError(f"{path} holds other tokens")
            os.utime(path)
        except SessionError:
            path.unlink(missing_ok=True)
            return None
        except OSError:
            return None
        return state

    def _trim(self) -> None:
        """Removes the files that were used least recently, while all are too many bytes."""
        files = sorted(self._stats(), key=lambda file: file[1])
        excess = sum(n_bytes for _, _, n_bytes in files) - self._max_bytes
        for path, _, n_bytes in files:
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= n_bytes

    def _stats(self) -> Iterator[tuple[Path, int, int]]:
        """Yields each file, when it was used last, and its size."""
        for path in self._folder.glob(f"*{_SUFFIX}"):
            with suppress(OSError):  # another process removed it
                stats = path.stat()
                yield path, stats.st_mtime_ns, stats.st_size
