"""Texts in which drafts did not come true, kept in a file for a draft head to learn from.

Source: Online Speculative Decoding (Liu et al., 2024), the replay buffer of section 3.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from edgedec.models.errors import ConfigError
from edgedec.models.manifest import TOKENIZER_NAME, read_manifest
from edgedec.runtime.decoding.strategy import TARGET

MAX_TOKENS = 1_000_000
"""Of all texts; the oldest go first. 4 bytes each."""

LONGEST = 512
"""Tokens of a text: as much as is trained on at once."""

_TABLE = """
CREATE TABLE IF NOT EXISTS texts
(id INTEGER PRIMARY KEY AUTOINCREMENT, tokenizer TEXT NOT NULL, tokens BLOB NOT NULL)
"""
_TRIM = """
DELETE FROM texts WHERE id <= (SELECT MAX(id) FROM
(SELECT id, SUM(LENGTH(tokens)) OVER (ORDER BY id DESC) AS n_bytes FROM texts) WHERE n_bytes > ?)
"""
_STORED = np.dtype("<i4")
_KIND = int.from_bytes(b"edrb")  # in the header of the file, so that no other database is touched


class ReplayBuffer:
    """Texts as token ids, in a database that nobody but its owner can read."""

    def __init__(self, path: Path, tokenizer: str) -> None:
        """tokenizer: hash of the one whose ids these are; texts of others are left alone."""
        self.path = path
        self._tokenizer = tokenizer

    @classmethod
    def of_bundle(cls, path: Path, bundle: Path) -> ReplayBuffer:
        """Returns the buffer at ``path``, for texts of the models of ``bundle``.

        Raises:
            BundleError: The bundle is broken.
        """
        tokenizer = read_manifest(bundle).files.get(TOKENIZER_NAME)
        return cls(path, "" if tokenizer is None else tokenizer.sha256)  # loading says what lacks

    @classmethod
    def made(cls, path: Path, bundle: Path) -> ReplayBuffer:
        """Returns the buffer at ``path`` as `of_bundle`; its file is made where there is none.

        Raises:
            BundleError: The bundle is broken.
            ConfigError: The file is something else, or cannot be written.
        """
        buffer = cls.of_bundle(path, bundle)
        with buffer._opened(is_new_allowed=True):
            return buffer

    def add(self, tokens: Sequence[int], origins: Sequence[str]) -> bool:
        """Keeps the end of a text if nothing drafted some of it; says whether it did.

        tokens: prompt and output. origins: of each token of the output, as in `GenerationResult`.

        Raises:
            ConfigError: The file is something else, or cannot be written.
        """
        # The first token of an output is the prefill's; nobody drafts it.
        missed = [i for i, origin in enumerate(origins) if i and origin == TARGET]
        if not missed:
            return False
        self.keep(tokens[: len(tokens) - len(origins) + missed[-1] + 1])
        return True

    def keep(self, tokens: Sequence[int]) -> None:
        """Keeps the end of a text.

        Raises:
            ConfigError: The file is something else, or cannot be written.
        """
        kept = np.array(tokens[-LONGEST:], _STORED).tobytes()
        with self._opened(is_new_allowed=True) as database:
            database.execute(
                "INSERT INTO texts (tokenizer, tokens) VALUES (?, ?)", (self._tokenizer, kept)
            )
            database.execute(_TRIM, (MAX_TOKENS * _STORED.itemsize,))

    def numbers(self) -> list[int]:
        """Returns the numbers of all texts, rising; later texts have larger ones.

        Raises:
            ConfigError: There is no such file, or it is something else.
        """
        query = "SELECT id FROM texts WHERE tokenizer = ? ORDER BY id"
        with self._opened(is_new_allowed=False) as database:
            return [number for (number,) in database.execute(query, (self._tokenizer,))]

    def texts(self, vocab_size: int) -> list[list[int]]:
        """Returns the token ids of every text, the latest first.

        Raises:
            ConfigError: There is no such file, or it is something else.
        """
        return list(self.numbered(vocab_size).values())

    def numbered(self, vocab_size: int) -> dict[int, list[int]]:
        """Returns the token ids of every text by its number, the latest first.

        Raises:
            ConfigError: There is no such file, or it is something else.
        """
        with self._opened(is_new_allowed=False) as database:
            rows = database.execute(
                "SELECT id, tokens FROM texts WHERE tokenizer = ? ORDER BY id DESC",
                (self._tokenizer,),
            ).fetchall()
        try:
            texts = {number: np.frombuffer(ids, _STORED)[:LONGEST] for number, ids in rows}
        except (TypeError, ValueError):
            texts = {0: np.array([-1])}
        if any(len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size for ids in texts.values()):
            raise ConfigError(f"{self.path} is damaged: keep texts in another file")
        return {number: ids.tolist() for number, ids in texts.items()}

    @contextmanager
    def _opened(self, is_new_allowed: bool) -> Iterator[sqlite3.Connection]:
        """A block in which the database is open, in one transaction."""
        try:
            flags = os.O_RDWR | (os.O_CREAT if is_new_allowed else 0)
            os.close(os.open(self.path, flags, 0o600))
            with closing(sqlite3.connect(self.path, timeout=10)) as database, database:
                kind = database.execute("PRAGMA application_id").fetchone()[0]
                if kind != _KIND and self.path.stat().st_size:
                    raise ConfigError(f"{self.path} is not a replay buffer: name another file")
                database.execute(f"PRAGMA application_id = {_KIND}")
                database.execute("PRAGMA trusted_schema = OFF")
                database.execute("PRAGMA secure_delete = ON")
                database.execute(_TABLE)
                yield database
        except OSError as error:
            raise ConfigError(f"cannot open {self.path}: {error.strerror}") from None
        except sqlite3.Error as error:
            raise ConfigError(f"cannot use {self.path} as a replay buffer: {error}") from None
