"""The file of an n-gram store: a header, then tokens; written so that a crash never breaks it.

Layout, little endian: 8 bytes "edngrams", uint32 version, 4 zero bytes, 32 bytes SHA-256 of the
tokenizer's hash, 16 zero bytes, then one uint32 a token. Texts end with the token 0xFFFFFFFF.
Tokens are appended in one write; what a killed writer left of a token is ignored and later cut.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import BundleError, ConfigError

Tokens = npt.NDArray[np.uint32]

SEPARATOR = 0xFFFF_FFFF
"""Ends a text; no token of any vocabulary."""

LEAST_BYTES, MOST_BYTES = 1 << 12, 1 << 30
"""Limits of what a store may be told to hold."""

_MAGIC, _VERSION = b"edngrams", 1
_HEADER = struct.Struct("<8sI4x32s16x")
_KEPT = 0.75  # of the tokens when the oldest are dropped, so that it happens now and then only
_STALE_S = 3600.0  # age at which a temporary file is taken for a killed writer's
_OPEN_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


class NgramFile:
    """Reads and appends. Several processes may: at worst one loses what another added."""

    def __init__(self, path: Path, tokenizer_hash: str, max_bytes: int) -> None:
        """Makes the file unless there is one.

        Raises:
            ConfigError: ``path`` is no place for a store, or ``max_bytes`` makes no sense.
            BundleError: The file is something else, or of another version or tokenizer.
        """
        if not LEAST_BYTES <= max_bytes <= MOST_BYTES:
            raise ConfigError(
                f"an n-gram store of {max_bytes} bytes makes no sense, expected {LEAST_BYTES} to "
                f"{MOST_BYTES}"
            )
        self._path = path
        self._tokenizer = hashlib.sha256(tokenizer_hash.encode()).digest()
        self.max_tokens = (max_bytes - _HEADER.size) // 4
        if not os.path.lexists(path):
            self._replace(np.empty(0, np.uint32))

    def read(self) -> Tokens:
        """Returns the newest tokens, as many as the file may hold."""
        with self._opened(os.O_RDONLY) as (descriptor, n_bytes):
            n_tokens = n_bytes // 4
            n_kept = min(n_tokens, self.max_tokens)
            os.lseek(descriptor, _HEADER.size + 4 * (n_tokens - n_kept), os.SEEK_SET)
            with os.fdopen(os.dup(descriptor), "rb") as file:
                found = file.read(4 * n_kept)
        return np.frombuffer(found[: len(found) // 4 * 4], "<u4").astype(np.uint32)

    def append(self, tokens: Tokens) -> None:
        """Adds ``tokens``; drops the oldest texts when the file would grow too large."""
        with self._opened(os.O_RDWR | os.O_APPEND) as (descriptor, n_bytes):
            is_torn = n_bytes % 4 != 0
            if not is_torn and n_bytes // 4 + len(tokens) <= self.max_tokens:
                os.write(descriptor, tokens.astype("<u4").tobytes())
                return
        self._replace(self._newest(np.concatenate([self.read(), tokens])))

    def _newest(self, tokens: Tokens) -> Tokens:
        """Returns ``tokens`` if the file may hold them, else whole texts from the end."""
        if len(tokens) <= self.max_tokens:
            return tokens
        kept = tokens[-int(_KEPT * self.max_tokens) :]
        ends = np.flatnonzero(kept[:-1] == SEPARATOR)
        return kept[ends[0] + 1 :] if len(ends) else kept

    @contextmanager
    def _opened(self, flags: int) -> Iterator[tuple[int, int]]:
        """Yields the checked file's descriptor and the bytes it has after the header."""
        try:
            descriptor = os.open(self._path, flags | _OPEN_FLAGS)
            try:
                yield descriptor, self._check(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._failure(error) from None

    def _check(self, descriptor: int) -> int:
        """Returns the bytes after the header, which must be that of a store for the tokenizer."""
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{self._path} is no file, expected one: name another n-gram store")
        header = os.read(descriptor, _HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise BundleError(
                f"{self._path} is no n-gram store: name another file, or delete it to start anew"
            )
        _, version, tokenizer = _HEADER.unpack(header)
        if version != _VERSION:
            raise BundleError(
                f"the n-gram store {self._path} has version {version}, expected {_VERSION}: "
                "delete it to start anew"
            )
        if tokenizer != self._tokenizer:
            raise BundleError(
                f"the n-gram store {self._path} is of another model's tokenizer: name another "
                "file, or delete it to start anew"
            )
        return status.st_size - _HEADER.size

    def _replace(self, tokens: Tokens) -> None:
        """Writes a new file beside the old one and puts it in its place."""
        folder, prefix = self._path.parent, f".{self._path.name}."
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _remove_stale(folder, prefix)
            descriptor, name = tempfile.mkstemp(".tmp", prefix, folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_HEADER.pack(_MAGIC, _VERSION, self._tokenizer))
                    file.write(tokens.astype("<u4").tobytes())
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).replace(self._path)
            finally:
                Path(name).unlink(missing_ok=True)
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> ConfigError:
        if self._path.is_symlink():
            return ConfigError(
                f"the n-gram store {self._path} is a symbolic link: name the file itself"
            )
        return ConfigError(
            f"cannot use the n-gram store {self._path}: {error.strerror or error}; name another "
            "file, or make this one readable and writable"
        )


def _remove_stale(folder: Path, prefix: str) -> None:
    """Deletes what writers that were killed left behind."""
    for left in folder.iterdir():
        if left.name.startswith(prefix) and left.name.endswith(".tmp"):
            try:
                is_stale = time.time() - left.lstat().st_mtime > _STALE_S
                if is_stale:
                    left.unlink()
            except FileNotFoundError:
                continue
