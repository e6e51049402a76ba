"""What a session has computed, apart from the session: tokens and their rows of the KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import SessionError
from edgedec.models.fields import shown

TOKEN_AXIS = 2
"""Axis of the tokens in every array of rows, whatever the KV cache's own layout."""

KVRows = Mapping[str, npt.NDArray[Any]]
Layout = dict[str, tuple[str, tuple[int, ...]]]
"""Of each array of rows: its dtype and the shape of one token's row."""


@dataclass(frozen=True, eq=False)
class SessionState:
    """Tokens, and the rows of those after the first ``start``.

    A session that is to take it up has the rows before; 0 makes a state complete.

    Shapes:
        kv_rows: name -> [n_layers, n_kv_heads, len(tokens) - start, ...]; arrays of their own or
            views, not to be written to.
    """

    tokens: tuple[int, ...]
    start: int
    kv_rows: KVRows

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return sum(rows.nbytes for rows in self.kv_rows.values())

    @cached_property
    def layout(self) -> Layout:
        """What the rows are made of; states of one layout fit the same sessions."""
        return {name: (rows.dtype.str, _row_shape(rows)) for name, rows in self.kv_rows.items()}

    @property
    def row_nbytes(self) -> int:
        """Bytes of one token's rows."""
        return sum(np.dtype(dtype).itemsize * _size(shape) for dtype, shape in self.layout.values())

    def after(self, start: int) -> SessionState:
        """Returns the state without the rows of tokens before ``start``."""
        return SessionState(
            self.tokens, start, cut(self.kv_rows, start - self.start, len(self.tokens) - self.start)
        )


def cut(kv_rows: KVRows, start: int, stop: int) -> KVRows:
    """Returns views of the rows from ``start`` to ``stop``."""
    return {name: rows[:, :, start:stop] for name, rows in kv_rows.items()}


def check_layout(got: Layout, expected: Layout) -> None:
    """Raises a SessionError unless rows of the one layout fit a session of the other."""
    for name in sorted(got.keys() | expected.keys()):
        if got.get(name) != expected.get(name):
            raise SessionError(
                f"the state's KV cache has {shown(name)} as {_described(got.get(name))}, the "
                f"session's as {_described(expected.get(name))}: load the model as it was loaded "
                "for that state, or compute the text anew"
            )


def check_counts(state: SessionState) -> None:
    """Raises a SessionError unless ``state`` has a row for each token it claims rows for."""
    n_rows = len(state.tokens) - state.start
    for name, rows in state.kv_rows.items():
        if state.start < 0 or rows.shape[TOKEN_AXIS] != n_rows:
            raise SessionError(
                f"the state has {rows.shape[TOKEN_AXIS]} rows of {name}, expected {n_rows} for its "
                "tokens: take another snapshot"
            )


def _described(row: tuple[str, tuple[int, ...]] | None) -> str:
    return "nothing" if row is None else f"{row[0][1:]} rows of {list(row[1])}"


def _row_shape(rows: npt.NDArray[Any]) -> tuple[int, ...]:
    return (*rows.shape[:TOKEN_AXIS], *rows.shape[TOKEN_AXIS + 1 :])


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size
