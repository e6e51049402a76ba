"""States of sessions in a file: no code in it, and nothing is believed before all of it is checked.

Layout, little-endian: magic (8 bytes), version (4), bytes of the header (4), SHA-256 of the header
(32), the header as JSON, zeros up to a whole page; then the arrays in the header's order, each
padded with zeros to whole pages. The header states the SHA-256 of everything behind itself.

Files of version 2 hold rounded rows. Each of their arrays consists of parts, which follow each
other: tokens, bytes, and whether they are what `rounded_rows` makes.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import LARGER_CONTEXT, SessionError
from edgedec.models.fields import shown
from edgedec.models.model_entry import MODEL_KINDS
from edgedec.runtime.sequences.rounded_rows import (
    ROUNDED,
    can_round,
    check_can_round,
    restored,
    rounded,
)
from edgedec.runtime.sequences.state import (
    TOKEN_AXIS,
    KVRows,
    Layout,
    SessionState,
    check_layout,
    is_latest,
)
from edgedec.runtime.text.common_prefix import common_prefix
from edgedec.system.files import replacing

MAGIC = b"edgedkv\n"
VERSION = 1
ROUNDED_VERSION = 2
PAGE = 4096

_PREAMBLE = struct.Struct("<8sII32s")
_MAX_HEADER_BYTES = 8 << 20
_MAX_ARRAYS = 4096
_MAX_AXES = 8
_MAX_SIZE = 2**31
_PIECE = 1 << 20
_DTYPES = ("<f2", "<f4", "|i1", "|u1", "<i2", "<i4", "<i8")


@dataclass(frozen=True)
class SavedModel:
    """A model's state, complete, and the fingerprint of the model.

    is_rounded: it was read from a file that has rounded rows of it.
    """

    fingerprint: str
    state: SessionState
    is_rounded: bool = False


@dataclass(frozen=True)
class Expected:
    """What a model's state must be like.

    layout: of the session that takes it up; None when that is not open yet.
    max_row_nbytes: most bytes that a token's rows may have. look_back: of the last tokens, those
        whose rows no layer may lack.
    """

    fingerprint: str
    context: int
    vocab_size: int
    max_row_nbytes: int
    layout: Layout | None = None
    look_back: int = 0


def write_states(
    path: Path,
    models: Mapping[str, SavedModel],
    *,
    is_durable: bool = True,
    is_rounded: bool = False,
) -> None:
    """Writes the states of ``models``, by role, all or nothing: an older file stays until then.

    is_durable: a power cut leaves the older file or the new one; else it may leave a damaged one.
    is_rounded: keys and values are rounded. What the older file has rounded of the same texts
        stays as it is there, so that nothing is rounded twice.

    Raises:
        SessionError: The file cannot be written, or not be rounded.
    """
    if is_rounded:
        check_can_round(models["target"].state.layout)
    parts = {
        role: _parts_of(saved, _rounded_before(path, role, saved) if is_rounded else None)
        for role, saved in models.items()
    }
    header = {
        "models": {
            role: _model_header(saved, parts[role], is_rounded) for role, saved in models.items()
        }
    }
    arrays = [
        [_bytes_of(part.content) for part in of_array]
        for of_model in parts.values()
        for of_array in of_model.values()
    ]
    n_header = len(_encode(header, "0" * 64))
    digest = hashlib.sha256(bytes(_padding(_PREAMBLE.size + n_header)))
    for array in arrays:
        for content in array:
            digest.update(content)
        digest.update(bytes(_padding(sum(map(len, array)))))
    encoded = _encode(header, digest.hexdigest())
    if len(encoded) > _MAX_HEADER_BYTES:
        raise SessionError(
            f"the tokens take {len(encoded)} bytes, expected at most {_MAX_HEADER_BYTES}: shorten "
            "the text"
        )
    try:
        with replacing(path, is_private=True, is_durable=is_durable) as file:
            version = ROUNDED_VERSION if is_rounded else VERSION
            file.write(
                _PREAMBLE.pack(MAGIC, version, len(encoded), hashlib.sha256(encoded).digest())
            )
            file.write(encoded)
            file.write(bytes(_padding(_PREAMBLE.size + len(encoded))))
            for array in arrays:
                for content in array:
                    file.write(content)
                file.write(bytes(_padding(sum(map(len, array)))))
    except OSError as error:
        raise SessionError(
            f"cannot write {path}: {error.strerror}; free space or choose another place"
        ) from None


def read_states(path: Path, expected: Mapping[str, Expected]) -> dict[str, SavedModel]:
    """Returns the states of the models in ``expected``, by role; others in the file are left out.

    Raises:
        SessionError: The file cannot be read, is damaged, or is of other models.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SessionError(f"{path} is not a regular file, expected one that a session wrote")
        with path.open("rb") as file:
            return _Reader(path, file).read(expected)
    except OSError as error:
        raise SessionError(f"cannot read {path}: {error.strerror}") from None


class _Reader:
    """One file being read."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._n_bytes = os.fstat(file.fileno()).st_size
        self._has_parts = False

    def read(self, expected: Mapping[str, Expected]) -> dict[str, SavedModel]:
        n_header, header = self._header()
        models = self._models(header)
        for role in models.keys() & expected.keys():
            self._check_expected(role, models[role], expected[role])
        stored = self._stored(n_header, header, models, expected)
        return {
            role: SavedModel(
                (model := models[role]).fingerprint,
                SessionState(
                    model.tokens, 0, {a.name: self._rows(a, arrays[a.name]) for a in model.arrays}
                ),
                any(part.is_rounded for of_array in arrays.values() for part in of_array),
            )
            for role, arrays in stored.items()
        }

    def rounded_before(self, role: str, saved: SavedModel) -> dict[str, list[_Part]]:
        """Returns the rounded parts of tokens that ``saved`` begins with."""
        n_header, header = self._header()
        model = (models := self._models(header)).get(role)
        if model is None or model.fingerprint != saved.fingerprint:
            return {}
        n_common = common_prefix(model.tokens, saved.state.tokens)
        n_parts = sum(stop <= n_common for stop in accumulate(model.rounded_parts))
        if n_parts == 0 or model.layout != saved.state.layout:
            return {}
        arrays = self._stored(n_header, header, models, (role,))[role]
        return {name: arrays[name][:n_parts] for name in ROUNDED}

    def _stored(
        self,
        n_header: int,
        header: dict[str, Any],
        models: Mapping[str, _ModelHeader],
        roles: Container[str],
    ) -> dict[str, dict[str, list[_Part]]]:
        """Returns what the file has of the arrays of ``roles``, undamaged."""
        end = _PREAMBLE.size + n_header
        start = end + _padding(end)
        n_payload = sum(
            array.n_stored + _padding(array.n_stored)
            for model in models.values()
            for array in model.arrays
        )
        if self._n_bytes != start + n_payload:
            self._fail(f"is {self._n_bytes} bytes, expected {start + n_payload}")
        digest = hashlib.sha256(self._exactly(start - end))
        stored = {
            role: {a.name: self._array(a, digest, role in roles) for a in model.arrays}
            for role, model in models.items()
        }
        if digest.hexdigest() != header["payload_sha256"]:
            self._fail("is damaged: its rows' SHA-256 is not the stated one")
        return {role: arrays for role, arrays in stored.items() if role in roles}

    def _header(self) -> tuple[int, dict[str, Any]]:
        """Returns the size of the header and what it says."""
        if self._n_bytes < _PREAMBLE.size:
            self._fail(f"is {self._n_bytes} bytes, expected at least {_PREAMBLE.size}")
        magic, version, n_header, digest = _PREAMBLE.unpack(self._exactly(_PREAMBLE.size))
        if magic != MAGIC:
            self._fail(f"begins with {shown(magic)}, expected {shown(MAGIC)}")
        if version not in (VERSION, ROUNDED_VERSION):
            self._fail(
                f"is of version {version}, this edgedec reads {VERSION} and {ROUNDED_VERSION}"
            )
        self._has_parts = version == ROUNDED_VERSION
        most = min(_MAX_HEADER_BYTES, self._n_bytes - _PREAMBLE.size)
        if n_header > most:
            self._fail(f"states a header of {n_header} bytes, expected at most {most}")
        encoded = self._exactly(n_header)
        if hashlib.sha256(encoded).digest() != digest:
            self._fail("is damaged: its header's SHA-256 is not the stated one")
        try:
            header = json.loads(encoded)
        except (ValueError, RecursionError):
            self._fail("has a header that is not JSON")
        self._check_keys(header, "the header", {"models", "payload_sha256"})
        return n_header, header

    def _models(self, header: dict[str, Any]) -> dict[str, _ModelHeader]:
        models = header["models"]
        if not isinstance(models, dict) or not {"target"} <= models.keys() <= set(MODEL_KINDS):
            self._fail(
                f"holds models {shown(models)}, expected a target among {', '.join(MODEL_KINDS)}"
            )
        return {role: self._model(role, model) for role, model in models.items()}

    def _model(self, role: str, model: Any) -> _ModelHeader:
        self._check_keys(model, role, {"fingerprint", "tokens", "kv_rows"})
        fingerprint, tokens, kv_rows = model["fingerprint"], model["tokens"], model["kv_rows"]
        if not isinstance(fingerprint, str):
            self._fail(f"states {role} fingerprint {shown(fingerprint)}, expected text")
        if not isinstance(tokens, list) or not all(_is_count(token) for token in tokens):
            self._fail(f"states {role} tokens {shown(tokens)}, expected token ids")
        if not isinstance(kv_rows, dict) or not 0 < len(kv_rows) <= _MAX_ARRAYS:
            self._fail(f"states {role} rows {shown(kv_rows)}, expected 1 to {_MAX_ARRAYS} arrays")
        arrays = tuple(self._array_header(role, *item, len(tokens)) for item in kv_rows.items())
        return _ModelHeader(fingerprint, tuple(tokens), arrays)

    def _array_header(self, role: str, name: str, array: Any, n_tokens: int) -> _ArrayHeader:
        where = f"{role} array {shown(name)}"
        has_parts = self._has_parts and name in ROUNDED
        self._check_keys(array, where, {"dtype", "shape", *(("parts",) if has_parts else ())})
        dtype, shape = array["dtype"], array["shape"]
        if dtype not in _DTYPES:
            self._fail(f"states {where} of {shown(dtype)}, expected one of {', '.join(_DTYPES)}")
        is_shape = isinstance(shape, list) and TOKEN_AXIS < len(shape) <= _MAX_AXES
        if is_shape and all(_is_count(n) for n in shape):
            is_shape = shape[TOKEN_AXIS] == n_tokens or (
                is_latest(name) and shape[TOKEN_AXIS] < n_tokens
            )
        else:
            is_shape = False
        if not is_shape:
            self._fail(f"states {where} of shape {shown(shape)}, expected {n_tokens} rows")
        plain = _ArrayHeader(name, dtype, tuple(shape))
        if not has_parts:
            return plain
        parts = array["parts"]
        is_list = isinstance(parts, list) and all(_is_part(part) for part in parts)
        if not is_list or sum(n for n, _, _ in parts) != n_tokens:
            self._fail(f"states {where} in parts {shown(parts)}, expected {n_tokens} rows in all")
        for n, n_bytes, is_rounded in parts:
            if not is_rounded and n_bytes != plain.of(n).nbytes:
                self._fail(f"states {where} with {n} rows of {n_bytes} bytes")
        return replace(plain, parts=tuple(map(tuple, parts)))

    def _check_expected(self, role: str, model: _ModelHeader, expected: Expected) -> None:
        if model.fingerprint != expected.fingerprint:
            raise SessionError(
                f"{self._path} was saved with another {role} model ({shown(model.fingerprint)}, "
                f"this one is {expected.fingerprint!r}): load the bundle it was saved with, or "
                "begin a new file"
            )
        if len(model.tokens) > expected.context:
            raise SessionError(
                f"{self._path} holds {len(model.tokens)} {role} tokens, the context is "
                f"{expected.context}: use {LARGER_CONTEXT}"
            )
        if model.tokens and max(model.tokens) >= expected.vocab_size:
            self._fail(f"holds token {max(model.tokens)}, expected 0 to {expected.vocab_size - 1}")
        if expected.layout is not None:
            try:
                check_layout(model.layout, expected.layout)
            except SessionError as error:
                raise SessionError(f"{self._path}: {error}") from None
        n_needed = min(len(model.tokens), expected.look_back)
        counts = {a.shape[TOKEN_AXIS] for a in model.arrays if is_latest(a.name)}
        if len(counts) > 1 or min(counts, default=n_needed) < n_needed:
            self._fail(
                f"has the latest {sorted(counts)} rows of {role} layers with a window, expected "
                f"{n_needed} or more"
            )
        most = len(model.tokens) * expected.max_row_nbytes
        if sum(array.nbytes for array in model.arrays) > most:
            self._fail(f"states more than {most} bytes of {role} rows")

    def _array(self, header: _ArrayHeader, digest: Any, is_wanted: bool) -> list[_Part]:
        """Returns the next array, or nothing unless it is wanted; hashes it either way."""
        parts = []
        for n, n_bytes, is_rounded in header.stored if is_wanted else ():
            if is_rounded:
                array = np.empty(n_bytes, np.uint8)
            else:
                array = np.empty(header.of(n).shape, header.dtype)
            view = _bytes_of(array)
            if self._file.readinto(view) != n_bytes:  # type: ignore[attr-defined]
                self._fail("was truncated while it was read")
            digest.update(view)
            parts.append(_Part(n, is_rounded, array))
        if not is_wanted:
            for start in range(0, header.n_stored, _PIECE):
                digest.update(self._exactly(min(_PIECE, header.n_stored - start)))
        digest.update(self._exactly(_padding(header.n_stored)))
        return parts

    def _rows(self, header: _ArrayHeader, parts: Sequence[_Part]) -> npt.NDArray[Any]:
        """Returns the array that ``parts`` make up."""
        if len(parts) == 1 and not parts[0].is_rounded:
            return parts[0].content
        rows, start = np.empty(header.shape, header.dtype), 0
        for part in parts:
            of_part = rows[:, :, start : start + part.n_tokens]
            if part.is_rounded:
                try:
                    restored(part.content.tobytes(), of_part)
                except ValueError as error:
                    self._fail(f"has rounded {header.name} that cannot be unpacked ({error})")
            else:
                of_part[:] = part.content
            start += part.n_tokens
        return rows

    def _exactly(self, n_bytes: int) -> bytes:
        piece = self._file.read(n_bytes)
        if len(piece) != n_bytes:
            self._fail("was truncated while it was read")
        return piece

    def _check_keys(self, got: Any, where: str, keys: set[str]) -> None:
        if not isinstance(got, dict) or got.keys() != keys:
            self._fail(f"states {where} as {shown(got)}, expected {', '.join(sorted(keys))}")

    def _fail(self, reason: str) -> NoReturn:
        raise SessionError(
            f"{self._path} {reason}: it is not a session that this edgedec saved; name "
            "another file, or delete it"
        )


class _Part(NamedTuple):
    """Rows of some tokens. content: what was made of them, as bytes, if they are rounded."""

    n_tokens: int
    is_rounded: bool
    content: npt.NDArray[Any]


@dataclass(frozen=True)
class _ArrayHeader:
    name: str
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[tuple[int, int, bool], ...] | None = None

    @property
    def stored(self) -> tuple[tuple[int, int, bool], ...]:
        """Tokens, bytes, and whether they are rounded, of each part."""
        whole = (self.shape[TOKEN_AXIS], self.nbytes, False)
        return (whole,) if self.parts is None else self.parts

    @property
    def n_stored(self) -> int:
        return sum(n_bytes for _, n_bytes, _ in self.stored)

    def of(self, n_tokens: int) -> _ArrayHeader:
        """Returns that of rows of so many tokens."""
        shape = (*self.shape[:TOKEN_AXIS], n_tokens, *self.shape[TOKEN_AXIS + 1 :])
        return _ArrayHeader(self.name, self.dtype, shape)

    @property
    def nbytes(self) -> int:
        n_bytes = np.dtype(self.dtype).itemsize
        for n in self.shape:  # of Python's integers, which do not wrap
            n_bytes *= n
        return n_bytes


@dataclass(frozen=True)
class _ModelHeader:
    fingerprint: str
    tokens: tuple[int, ...]
    arrays: tuple[_ArrayHeader, ...]

    @property
    def rounded_parts(self) -> list[int]:
        """Tokens of the first parts, as long as keys and values alike are rounded."""
        of_arrays = [array.stored for array in self.arrays if array.name in ROUNDED]
        alike = takewhile(
            lambda parts: len({n for n, _, _ in parts}) == 1 and all(part[2] for part in parts),
            zip(*of_arrays, strict=False),
        )
        return [parts[0][0] for parts in alike]

    @property
    def layout(self) -> Layout:
        return {
            array.name: (
                array.dtype,
                (*array.shape[:TOKEN_AXIS], *array.shape[TOKEN_AXIS + 1 :]),
            )
            for array in self.arrays
        }


def _model_header(
    saved: SavedModel, parts: Mapping[str, Sequence[_Part]], has_parts: bool
) -> dict[str, Any]:
    kv_rows: KVRows = saved.state.kv_rows
    arrays: dict[str, Any] = {
        name: {"dtype": rows.dtype.str, "shape": rows.shape} for name, rows in kv_rows.items()
    }
    for name in arrays.keys() & set(ROUNDED) if has_parts else ():
        arrays[name]["parts"] = [
            (part.n_tokens, part.content.nbytes, part.is_rounded) for part in parts[name]
        ]
    return {
        "fingerprint": saved.fingerprint,
        "tokens": [int(token) for token in saved.state.tokens],
        "kv_rows": arrays,
    }


def _parts_of(saved: SavedModel, before: dict[str, list[_Part]] | None) -> dict[str, list[_Part]]:
    """Returns what a file has of each array. before: what is rounded already; all stays if None."""
    kv_rows, n = saved.state.kv_rows, len(saved.state.tokens)
    parts = {name: [_Part(n, False, np.ascontiguousarray(rows))] for name, rows in kv_rows.items()}
    if before is None or not can_round(saved.state.layout):
        return parts
    n_before = sum(part.n_tokens for part in before.get(ROUNDED[0], ()))
    if n_before == n > 0:
        return parts | before
    new = rounded(kv_rows, n_before, n)
    for name in ROUNDED:
        rest = np.frombuffer(new[name], np.uint8) if new else kv_rows[name][:, :, n_before:]
        last = _Part(n - n_before, bool(new), np.ascontiguousarray(rest))
        parts[name] = [*before.get(name, ()), last]
    return parts


def _rounded_before(path: Path, role: str, saved: SavedModel) -> dict[str, list[_Part]]:
    """Returns what the file at ``path`` has rounded of tokens that ``saved`` begins with."""
    try:
        with path.open("rb") as file:
            return _Reader(path, file).rounded_before(role, saved)
    except (OSError, SessionError):
        return {}


def _encode(header: dict[str, Any], payload_sha256: str) -> bytes:
    return json.dumps({**header, "payload_sha256": payload_sha256}).encode()


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _padding(n_bytes: int) -> int:
    return -n_bytes % PAGE


def _is_part(value: Any) -> bool:
    is_list = isinstance(value, list) and len(value) == 3
    return is_list and all(_is_count(n) for n in value[:2]) and isinstance(value[2], bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_SIZE
