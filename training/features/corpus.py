"""Text files that something is trained on, and what of them is read."""

from __future__ import annotations

import os
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

from edgedec.models.errors import ConfigError

_MAX_FILE_BYTES = 1 << 16
_ROUNDS = 8


@dataclass
class Corpus:
    """Windows of the files below some paths. n_skipped: files that are no text, so far."""

    paths: tuple[Path, ...]
    window: int
    n_skipped: int = 0

    def windows(self, encode: Callable[[str], list[int]]) -> Iterator[tuple[str, list[int]]]:
        """Yields what kind of file a window is from, and its tokens.

        One of each file, chosen by its name, then another of each: many files are seen.
        """
        for turn in range(_ROUNDS):
            for path in corpus_files(self.paths):
                text = text_of(path)
                if text is None:
                    self.n_skipped += turn == 0
                    continue
                tokens = encode(text)
                n_windows = max(1, len(tokens) // self.window)
                if turn < n_windows:
                    first = (_order(Path(), Path(path.name))[0] + turn) % n_windows * self.window
                    yield path.suffix, tokens[first : first + self.window]


def corpus_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yields the files, those of a folder in an order that has nothing to do with their names.

    Raises:
        ConfigError: There is no such file or folder.
    """
    for path in paths:
        if path.is_file():
            yield path
        elif path.is_dir():
            files = [p for p in path.rglob("*") if p.is_file() and not _is_hidden(p, path)]
            yield from sorted(files, key=partial(_order, path))
        else:
            raise ConfigError(f"got {path}, expected a text file or a folder to learn from")


def corpus_key(paths: Iterable[Path]) -> str:
    """Returns what changes when the files do, by their names, sizes and times.

    Raises:
        ConfigError: There is no such file or folder.
    """
    digest = sha256()
    for path in corpus_files(paths):
        status = path.stat()
        facts = (str(path.absolute()), status.st_size, status.st_mtime_ns)
        digest.update(repr(facts).encode())
    return digest.hexdigest()


def text_of(path: Path) -> str | None:
    """Returns the beginning of a file, or None where it is not UTF-8 text or cannot be read."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES)
        # A character may be cut in two at the end of what is read.
        is_whole = len(content) < _MAX_FILE_BYTES
        text = getincrementaldecoder("utf-8-sig")().decode(content, is_whole)
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text


def _order(folder: Path, path: Path) -> bytes:
    return sha256(os.fsencode(path.relative_to(folder).as_posix())).digest()


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)
