"""States of sessions in a file: no code in it, and nothing is believed before all of it is checked.

Layout, little-endian: magic (8 bytes), version (4), bytes of the header (4), SHA-256 of the header
(32), the header as JSON, zeros up to a whole page; then the arrays in the header's order, each
padded with zeros to whole pages. The header states the SHA-256 of everything behind itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import LARGER_CONTEXT, SessionError
from edgedec.models.fields import shown
from edgedec.models.model_entry import MODEL_KINDS
from edgedec.runtime.sequences.state import (
    TOKEN_AXIS,
    KVRows,
    Layout,
    SessionState,
    check_layout,
    is_latest,
)
from edgedec.system.files import replacing

MAGIC = b"edgedkv\n"
VERSION = 1
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
    """A model's state, complete, and the fingerprint of the model."""

    fingerprint: str
    state: SessionState


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


def write_states(path: Path, models: Mapping[str, SavedModel], *, is_durable: bool = True) -> None:
    """Writes the states of ``models``, by role, all or nothing: an older file stays until then.

    is_durable: a power cut leaves the older file or the new one; else it may leave a damaged one.

    Raises:
        SessionError: The file cannot be written.
    """
    arrays = [
        np.ascontiguousarray(rows) for m in models.values() for rows in m.state.kv_rows.values()
    ]
    header = {"models": {role: _model_header(saved) for role, saved in models.items()}}
    n_header = len(_encode(header, "0" * 64))
    digest = hashlib.sha256(bytes(_padding(_PREAMBLE.size + n_header)))
    for array in arrays:
        digest.update(_bytes_of(array))
        digest.update(bytes(_padding(array.nbytes)))
    encoded = _encode(header, digest.hexdigest())
    if len(encoded) > _MAX_HEADER_BYTES:
        raise SessionError(
            f"the tokens take {len(encoded)} bytes, expected at most {_MAX_HEADER_BYTES}: shorten "
            "the text"
        )
    try:
        with replacing(path, is_private=True, is_durable=is_durable) as file:
            file.write(
                _PREAMBLE.pack(MAGIC, VERSION, len(encoded), hashlib.sha256(encoded).digest())
            )
            file.write(encoded)
            file.write(bytes(_padding(_PREAMBLE.size + len(encoded))))
            for array in arrays:
                file.write(_bytes_of(array))
                file.write(bytes(_padding(array.nbytes)))
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

    def read(self, expected: Mapping[str, Expected]) -> dict[str, SavedModel]:
        n_header, header = self._header()
        models = self._models(header)
        for role in models.keys() & expected.keys():
            self._check_expected(role, models[role], expected[role])
        end = _PREAMBLE.size + n_header
        start = end + _padding(end)
        n_payload = sum(
            array.nbytes + _padding(array.nbytes)
            for model in models.values()
            for array in model.arrays
        )
        if self._n_bytes != start + n_payload:
            self._fail(f"is {self._n_bytes} bytes, expected {start + n_payload}")
        digest = hashlib.sha256(self._exactly(start - end))
        states = {}
        for role, model in models.items():
            kv_rows = {a.name: self._array(a, digest, role in expected) for a in model.arrays}
            states[role] = SavedModel(model.fingerprint, SessionState(model.tokens, 0, kv_rows))
        if digest.hexdigest() != header["payload_sha256"]:
            self._fail("is damaged: its rows' SHA-256 is not the stated one")
        return {role: saved for role, saved in states.items() if role in expected}

    def _header(self) -> tuple[int, dict[str, Any]]:
        """Returns the size of the header and what it says."""
        if self._n_bytes < _PREAMBLE.size:
            self._fail(f"is {self._n_bytes} bytes, expected at least {_PREAMBLE.size}")
        magic, version, n_header, digest = _PREAMBLE.unpack(self._exactly(_PREAMBLE.size))
        if magic != MAGIC:
            self._fail(f"begins with {shown(magic)}, expected {shown(MAGIC)}")
        if version != VERSION:
            self._fail(f"is of version {version}, this edgedec reads {VERSION}")
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
        self._check_keys(array, where, {"dtype", "shape"})
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
        return _ArrayHeader(name, dtype, tuple(shape))

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

    def _array(self, header: _ArrayHeader, digest: Any, is_wanted: bool) -> npt.NDArray[Any]:
        """Returns the next array, or an empty one unless it is wanted; hashes it either way."""
        array = np.empty(header.shape if is_wanted else (0, 0, 0), header.dtype)
        if is_wanted:
            view = _bytes_of(array)
            if self._file.readinto(view) != array.nbytes:  # type: ignore[attr-defined]
                self._fail("was truncated while it was read")
            digest.update(view)
        else:
            for start in range(0, header.nbytes, _PIECE):
                digest.update(self._exactly(min(_PIECE, header.nbytes - start)))
        digest.update(self._exactly(_padding(header.nbytes)))
        return array

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


@dataclass(frozen=True)
class _ArrayHeader:
    name: str
    dtype: str
    shape: tuple[int, ...]

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
    def layout(self) -> Layout:
        return {
            array.name: (
                array.dtype,
                (*array.shape[:TOKEN_AXIS], *array.shape[TOKEN_AXIS + 1 :]),
            )
            for array in self.arrays
        }


def _model_header(saved: SavedModel) -> dict[str, Any]:
    kv_rows: KVRows = saved.state.kv_rows
    return {
        "fingerprint": saved.fingerprint,
        "tokens": [int(token) for token in saved.state.tokens],
        "kv_rows": {
            name: {"dtype": rows.dtype.str, "shape": rows.shape} for name, rows in kv_rows.items()
        },
    }


def _encode(header: dict[str, Any], payload_sha256: str) -> bytes:
    return json.dumps({**header, "payload_sha256": payload_sha256}).encode()


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _padding(n_bytes: int) -> int:
    return -n_bytes % PAGE


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_SIZE
