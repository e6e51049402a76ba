"""The file of an n-gram store: a header, then tokens; written so that a crash never breaks it.

Layout, little endian: 8 bytes "edngrams", uint32 version, uint32 CRC-32 of the header without the
next two fields, uint32 number of tokens, uint32 CRC-32 of the tokens of the last, unfinished block,
uint64 most bytes of the file, 32 bytes SHA-256 of the tokenizer, then the blocks: 1023 tokens of
uint32 and their CRC-32. Texts end with the token 0xFFFFFFFF. Appended tokens count once the header
says so: what a killed writer left beyond them is ignored, and later overwritten.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import BundleError, ConfigError
from edgedec.system.files import open_regular, read_at, replacing, write_at
from edgedec.system.locks import lock_file

Tokens = npt.NDArray[np.uint32]

SEPARATOR = 0xFFFF_FFFF
"""Ends a text; no token of any vocabulary."""

MIN_BYTES, MAX_BYTES = 1 << 12, 1 << 30
"""Largest sizes a store may be given."""

DEFAULT_MAX_BYTES = 8 << 20
"""Size of a new store for which none is given."""

_MAGIC, _VERSION = b"edngrams", 3
_HEADER = struct.Struct("<8sIIIIQ32s")
_COUNT = struct.Struct("<II")  # tokens, and the checksum of the last block: written at once
_COUNT_AT = 16  # bytes from the start of the file
_BLOCK = 1023  # tokens
_KEPT = 0.75  # of the tokens when the oldest are dropped, so that it happens now and then only
_STALE_S = 3600.0  # age at which a temporary file is taken for a killed writer's


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What a store's file says of itself.

    n_texts: that have ended. n_tokens: of all texts, without what ends them. n_bytes: of the file.
    tokenizer_sha256: of the tokenizer's file. Units: hex digits.
    """

    version: int
    n_texts: int
    n_tokens: int
    n_bytes: int
    max_bytes: int
    tokenizer_sha256: str


def describe(path: str | Path) -> StoreFacts:
    """Returns what the store at ``path`` holds, whatever tokenizer it is of.

    Raises:
        ConfigError: There is no such file, or it cannot be read.
        BundleError: The file is something else, damaged, or of another version.
    """
    path = Path(path)
    with _opened(path, os.O_RDONLY) as (descriptor, header):
        n_kept = min(header.n_tokens, _most_tokens(header.max_bytes))
        n_texts = int((_read_newest(path, descriptor, header, n_kept) == SEPARATOR).sum())
        return StoreFacts(
            version=_VERSION,
            n_texts=n_texts,
            n_tokens=n_kept - n_texts,
            n_bytes=os.fstat(descriptor).st_size,
            max_bytes=header.max_bytes,
            tokenizer_sha256=header.tokenizer.hex(),
        )


class NgramFile:
    """Reads and appends. Several processes may: at worst one loses what another added."""

    def __init__(self, path: Path, tokenizer_sha256: str, max_bytes: int | None = None) -> None:
        """Makes the file unless there is one.

        Args:
            tokenizer_sha256: SHA-256 of the tokenizer's file, in hex digits.
            max_bytes: What the file may hold from now on; what it says itself when None.

        Raises:
            ConfigError: ``path`` is no place for a store, or ``max_bytes`` makes no sense.
            BundleError: The file is something else, damaged, or of another version or tokenizer.
        """
        if max_bytes is not None and not MIN_BYTES <= max_bytes <= MAX_BYTES:
            raise ConfigError(
                f"an n-gram store of {max_bytes} bytes makes no sense, expected {MIN_BYTES} to "
                f"{MAX_BYTES}"
            )
        self._path = path
        self._tokenizer = bytes.fromhex(tokenizer_sha256)
        self._max_bytes = max_bytes or DEFAULT_MAX_BYTES
        if not os.path.lexists(path):
            self._replace(np.empty(0, np.uint32))
        with self._checked(os.O_RDONLY) as (_, header):
            self._max_bytes = max_bytes or header.max_bytes
        if header.max_bytes != self._max_bytes:
            with self._checked(os.O_RDWR) as (descriptor, header):
                held = _read_newest(path, descriptor, header, header.n_tokens)
            self._replace(self._newest(held))

    @property
    def max_tokens(self) -> int:
        """Most tokens that the file may hold, those that end texts included."""
        return _most_tokens(self._max_bytes)

    def read(self) -> Tokens:
        """Returns the newest tokens, as many as the file may hold."""
        with self._checked(os.O_RDONLY) as (descriptor, header):
            return _read_newest(self._path, descriptor, header, self.max_tokens)

    def append(self, tokens: Tokens) -> None:
        """Adds ``tokens``; drops the oldest texts when the file would grow too large."""
        with self._checked(os.O_RDWR) as (descriptor, header):
            n_tokens = header.n_tokens + len(tokens)
            if n_tokens <= self.max_tokens:
                # The last block is checked again, and written again with what completes it.
                n_last = header.n_tokens % _BLOCK
                last = _read_newest(self._path, descriptor, header, n_last)
                content, checksum = _in_blocks(np.concatenate([last, tokens]))
                write_at(descriptor, content, _place(header.n_tokens - n_last))
                write_at(descriptor, _COUNT.pack(n_tokens, checksum), _COUNT_AT)
                return
            held = _read_newest(self._path, descriptor, header, self.max_tokens)
        self._replace(self._newest(np.concatenate([held, tokens])))  # none may have it open

    def _newest(self, tokens: Tokens) -> Tokens:
        """Returns ``tokens`` if the file may hold them, else whole texts from the end."""
        if len(tokens) <= self.max_tokens:
            return tokens
        kept = tokens[-int(_KEPT * self.max_tokens) :]
        ends = np.flatnonzero(kept[:-1] == SEPARATOR)
        return kept[ends[0] + 1 :] if len(ends) else kept

    @contextmanager
    def _checked(self, flags: int) -> Iterator[tuple[int, _Header]]:
        """Yields the descriptor and the header of the file, which must be of the tokenizer."""
        with _opened(self._path, flags) as (descriptor, header):
            if header.tokenizer != self._tokenizer:
                raise BundleError(
                    f"the n-gram store {self._path} was made for another tokenizer: name another "
                    "file, or delete it to start again"
                )
            yield descriptor, header

    def _replace(self, tokens: Tokens) -> None:
        """Writes a new file beside the old one and puts it in its place."""
        folder = self._path.parent
        if not folder.is_dir():
            raise ConfigError(f"cannot make {self._path}: there is no folder {folder}")
        content, checksum = _in_blocks(tokens)
        facts = self._max_bytes, self._tokenizer
        header = _MAGIC, _VERSION, _facts_crc(*facts), len(tokens), checksum, *facts
        try:
            with replacing(self._path, is_private=True, is_durable=True) as file:
                file.write(_HEADER.pack(*header))
                file.write(content)
        except OSError as error:
            raise _failure(self._path, error) from None


@dataclass(frozen=True, slots=True)
class _Header:
    n_tokens: int
    checksum: int  # of the last, unfinished block
    max_bytes: int
    tokenizer: bytes


def _most_tokens(max_bytes: int) -> int:
    n_blocks, n_words = divmod((max_bytes - _HEADER.size) // 4, _BLOCK + 1)
    return n_blocks * _BLOCK + n_words


def _place(token: int) -> int:
    """Returns where the token of that number is. Units: bytes from the start of the file."""
    return _HEADER.size + 4 * (token + token // _BLOCK)


def _facts_crc(max_bytes: int, tokenizer: bytes) -> int:
    return zlib.crc32(_MAGIC + struct.pack("<IQ", _VERSION, max_bytes) + tokenizer)


def _in_blocks(tokens: Tokens) -> tuple[bytes, int]:
    """Returns ``tokens`` as blocks, and the checksum of the last, unfinished one."""
    words = tokens.astype("<u4").tobytes()
    cuts = range(0, len(words), 4 * _BLOCK)
    blocks = [words[start : start + 4 * _BLOCK] for start in cuts]
    rest = blocks.pop() if len(words) % (4 * _BLOCK) else b""
    whole = (block + struct.pack("<I", zlib.crc32(block)) for block in blocks)
    return b"".join(whole) + rest, zlib.crc32(rest)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[tuple[int, _Header]]:
    """Yields the descriptor and the header of a file that others do not change meanwhile."""
    try:
        descriptor = open_regular(path, flags)
        if descriptor is None:
            raise ConfigError(f"{path} is not a file, expected one: name another n-gram store")
        try:
            lock_file(descriptor, is_shared=flags == os.O_RDONLY)
            yield descriptor, _read_header(path, descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _failure(path, error) from None


def _read_header(path: Path, descriptor: int) -> _Header:
    """Returns the header, which must be that of a whole store."""
    n_bytes = os.fstat(descriptor).st_size
    header = read_at(descriptor, _HEADER.size, 0)
    if not header.startswith(_MAGIC):
        raise BundleError(
            f"{path} is not an n-gram store: name another file, or make a store with "
            "`edgedec store seed`"
        )
    if len(header) < _HEADER.size:
        raise _truncated(path, n_bytes, _HEADER.size)
    _, version, facts_crc, n_tokens, checksum, max_bytes, tokenizer = _HEADER.unpack(header)
    if version != _VERSION:
        raise BundleError(
            f"the n-gram store {path} has version {version}, expected {_VERSION}: delete it to "
            "start again"
        )
    if n_bytes < _place(n_tokens):
        raise _truncated(path, n_bytes, _place(n_tokens))
    is_size = MIN_BYTES <= max_bytes <= MAX_BYTES
    if facts_crc != _facts_crc(max_bytes, tokenizer) or not is_size:
        raise _damaged(path)
    return _Header(n_tokens, checksum, max_bytes, tokenizer)


def _damaged(path: Path) -> BundleError:
    return BundleError(
        f"the n-gram store {path} is damaged: its checksum is wrong; copy it "
        "again, or delete it to start again"
    )


def _truncated(path: Path, n_bytes: int, expected: int) -> BundleError:
    return BundleError(
        f"the n-gram store {path} is truncated to {n_bytes} bytes, expected at least {expected}: "
        "copy it again, or delete it to start again"
    )


def _read_newest(path: Path, descriptor: int, header: _Header, n_tokens: int) -> Tokens:
    """Returns the last tokens of the file, at most ``n_tokens`` and what any store may hold.

    Raises:
        BundleError: One of their blocks is not as it was written.
    """
    n_kept = min(header.n_tokens, n_tokens, _most_tokens(MAX_BYTES))
    first = (header.n_tokens - n_kept) // _BLOCK * _BLOCK
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(_place(first))
        stored = file.read(_place(header.n_tokens) - _place(first))
    words = np.frombuffer(stored, "<u4").astype(np.uint32)
    n_blocks = (header.n_tokens - first) // _BLOCK
    blocks, rest = np.split(words, [n_blocks * (_BLOCK + 1)])
    blocks = blocks.reshape(n_blocks, _BLOCK + 1)
    tokens = np.concatenate([blocks[:, :_BLOCK].ravel(), rest])
    content, checksum = _in_blocks(tokens)
    if content != stored or checksum != header.checksum:
        raise _damaged(path)
    return tokens[len(tokens) - n_kept :]


def _failure(path: Path, error: OSError) -> ConfigError:
    if path.is_symlink():
        return ConfigError(f"the n-gram store {path} is a symbolic link: name the file itself")
    return ConfigError(
        f"cannot use the n-gram store {path}: {error.strerror or error}; name another file, or "
        "make this one readable and writable"
    )
