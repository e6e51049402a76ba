"""Token texts kept on disk, to find what followed a context before: in other requests, or files.

Source: retrieval as in REST (He et al., 2024), with sorted n-gram hashes for a suffix array.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from edgedec.models.errors import ConfigError
from edgedec.runtime.drafting.ngrams.ngram_file import SEPARATOR, NgramFile, Tokens
from edgedec.runtime.drafting.ngrams.ngram_index import NgramIndex
from edgedec.runtime.sequences.prefill import Progress

_LARGEST_FILE = 1 << 20  # bytes of a file worth reading: larger ones are rarely written by hand
_MAX_FILES = 20_000
_N_RECENT = 1 << 16  # tokens indexed apart, so that adding does not sort everything again
_WRITTEN_AT_ONCE = 1 << 18  # tokens


@dataclass(frozen=True, slots=True)
class Match:
    """Where a context was found.

    length: its tokens that match. following: what came then each time, the latest first.
    """

    length: int
    following: list[list[int]]


@dataclass(frozen=True, slots=True)
class SeedReport:
    """What seeding did.

    n_files: added. n_skipped: files that are no text, too large, or came too late.
    n_tokens: added. is_full: the store could take no more.
    """

    n_files: int = 0
    n_skipped: int = 0
    n_tokens: int = 0
    is_full: bool = False

    def plus(self, other: SeedReport) -> SeedReport:
        """Returns what this and ``other`` did together."""
        return SeedReport(
            self.n_files + other.n_files,
            self.n_skipped + other.n_skipped,
            self.n_tokens + other.n_tokens,
            self.is_full or other.is_full,
        )


class NgramStore:
    """Texts as token ids in one file, the oldest dropped beyond its size.

    The file holds what users wrote: it is readable for its owner alone.
    """

    def __init__(self, file: NgramFile) -> None:
        self._file = file
        self._tokens = file.read()
        self._recent: list[Tokens] = []
        self._index: NgramIndex | None = None
        self._recent_index: NgramIndex | None = None

    @classmethod
    def open(cls, path: str | Path, tokenizer_sha256: str, max_bytes: int | None = None) -> Self:
        """Returns the store at ``path``, an empty one if there is no file.

        Args:
            tokenizer_sha256: SHA-256, in hex digits, of the tokenizer whose ids are stored.
            max_bytes: What the file may hold from now on; what it says itself when None.

        Raises:
            ConfigError: ``path`` is no place for a store, or ``max_bytes`` makes no sense.
            BundleError: The file is something else, damaged, or of another version or tokenizer.
        """
        return cls(NgramFile(Path(path), tokenizer_sha256, max_bytes))

    @property
    def n_tokens(self) -> int:
        """Tokens held, those that end texts included."""
        return len(self._tokens) + sum(map(len, self._recent))

    def add(self, tokens: Sequence[int]) -> None:
        """Adds a text and writes it to the file.

        Raises:
            ConfigError: The file cannot be written.
        """
        if len(tokens) == 0:
            return
        if not 0 <= min(tokens) <= max(tokens) < SEPARATOR:
            raise ConfigError(f"a text holds tokens {min(tokens)} to {max(tokens)}, expected ids")
        text = np.array([*tokens, SEPARATOR], np.uint32)
        self._recent.append(text)
        self._recent_index = None
        if sum(map(len, self._recent)) > _N_RECENT:
            self._merge()
        self._file.append(text)

    def seed(
        self,
        folder: str | Path,
        encode: Callable[[Sequence[str]], Sequence[Sequence[int]]],
        on_progress: Progress | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        n_at_once: int = 32,
    ) -> SeedReport:
        """Adds the text files under ``folder`` until the store is full.

        Hidden files, links, large files and those that are not UTF-8 text are skipped.

        Args:
            encode: Gives the token ids of each of several texts.
            on_progress: Called with ("seed", files done, files in all).
            is_stopping: Asked after each file whether to end here, and keep what was read.
            n_at_once: Files whose texts are given to ``encode`` together.

        Raises:
            ConfigError: ``folder`` is no folder, or the store cannot be written.
        """
        if not Path(folder).is_dir():
            raise ConfigError(f"cannot seed the n-gram store from {folder}: it is not a folder")
        paths = sorted(_files(Path(folder)))
        report = on_progress or (lambda phase, done, total: None)
        n_files = n_tokens = n_waiting = 0
        is_full = False
        waiting: list[Tokens] = []
        for n_done, tokens in enumerate(_encoded(paths, encode, n_at_once)):
            report("seed", n_done, len(paths))
            is_full = self.n_tokens + n_waiting >= self._file.max_tokens
            if is_full:
                break
            if len(tokens):
                waiting.append(np.array([*tokens, SEPARATOR], np.uint32))
                n_waiting += len(waiting[-1])
                n_files, n_tokens = n_files + 1, n_tokens + len(tokens)
            if n_waiting >= _WRITTEN_AT_ONCE:
                self._add_many(waiting)
                waiting, n_waiting = [], 0
            if is_stopping():
                break
        self._add_many(waiting)
        report("seed", len(paths), len(paths))
        return SeedReport(n_files, len(paths) - n_files, n_tokens, is_full)

    def query(self, text: Sequence[int], n_tokens: int) -> Match:
        """Returns what came after the longest end of ``text`` that is known, 2 to 16 tokens of it.

        Args:
            n_tokens: Most tokens to return of each continuation; 16 are the most there are.
        """
        if self._index is None:
            self._index = NgramIndex(self._tokens)
        if self._recent_index is None and self._recent:
            self._recent_index = NgramIndex(np.concatenate(self._recent))
        best = Match(0, [])
        for index in (self._recent_index, self._index):
            if index is None:
                continue
            length, places = index.find(text)
            following = index.following(places, n_tokens)
            if length > best.length:
                best = Match(length, following)
            elif length == best.length:
                best = Match(length, best.following + following)
        return best

    def _add_many(self, texts: list[Tokens]) -> None:
        if texts:
            self._recent += texts
            self._merge()
            self._file.append(np.concatenate(texts))

    def _merge(self) -> None:
        """Takes the recent texts for old ones; the index of all is sorted anew when needed."""
        self._tokens = np.concatenate([self._tokens, *self._recent])[-self._file.max_tokens :]
        self._recent, self._index, self._recent_index = [], None, None


def _files(folder: Path) -> Iterator[Path]:
    """Yields the files under ``folder`` that are neither hidden nor links."""
    n_files = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            path = Path(place, name)
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path
                n_files += 1
                if n_files == _MAX_FILES:
                    return


def _encoded(
    paths: Sequence[Path],
    encode: Callable[[Sequence[str]], Sequence[Sequence[int]]],
    n_at_once: int,
) -> Iterator[Sequence[int]]:
    """Yields the token ids of each file, none of one that has no text worth reading."""
    for start in range(0, len(paths), n_at_once):
        yield from encode([_text_of(path) for path in paths[start : start + n_at_once]])


def _text_of(path: Path) -> str:
    """Returns the file's text, "" when it has none worth reading."""
    try:
        if path.stat().st_size > _LARGEST_FILE:
            return ""
        content = path.read_bytes()
        return "" if b"\0" in content else content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return ""
