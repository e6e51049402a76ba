"""What a session has computed, apart from the session: tokens and their rows of the KV cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import LARGER_CONTEXT, SessionError
from edgedec.models.fields import shown

TOKEN_AXIS = 2
"""Axis of the tokens in every array of rows, whatever the KV cache's own layout."""

LATEST = "latest_"
"""Names of arrays begin with it whose layers keep the latest tokens only, for they have windows."""

TOGETHER = f"{LATEST}recurrent"
"""Names of those among them begin with it whose rows mean something all together alone."""

KVRows = Mapping[str, npt.NDArray[Any]]
Layout = dict[str, tuple[str, tuple[int, ...]]]
"""Of each array of rows: its dtype and the shape of one token's row."""


@dataclass(frozen=True, eq=False)
class SessionState:
    """Tokens, and the rows of those after the first ``start``.

    A session that is to take it up has the rows before; 0 makes a state complete.

    Shapes:
        kv_rows: name -> [n_layers, n_kv_heads, len(tokens) - start, ...]; under names that begin
            with `LATEST` the rows of the last tokens, be they more or fewer. Arrays of their own
            or views, not to be written to.
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
        """Bytes of one token's rows in the layers that keep every token."""
        return sum(
            np.dtype(dtype).itemsize * _size(shape)
            for name, (dtype, shape) in self.layout.items()
            if not is_latest(name)
        )

    @property
    def first_latest(self) -> int | None:
        """The first token whose rows `LATEST` arrays have; None without such arrays."""
        counts = [rows.shape[TOKEN_AXIS] for name, rows in self.kv_rows.items() if is_latest(name)]
        return len(self.tokens) - counts[0] if counts else None

    def after(self, start: int) -> SessionState:
        """Returns the state without the rows of tokens before ``start``."""
        n_rows = len(self.tokens) - self.start
        return SessionState(
            self.tokens, start, cut(self.kv_rows, n_rows, start - self.start, n_rows)
        )


def is_latest(name: str) -> bool:
    """Says whether the array of this name has the rows of the last tokens, however many."""
    return name.startswith(LATEST)


def cut(kv_rows: KVRows, n_rows: int, start: int, stop: int) -> KVRows:
    """Returns views of rows ``start`` to ``stop`` of ``n_rows``, all `LATEST` ones to ``stop``."""
    return {
        name: rows[:, :, : max(0, rows.shape[TOKEN_AXIS] - n_rows + stop)]
        if is_latest(name)
        else rows[:, :, start:stop]
        for name, rows in kv_rows.items()
    }


def first_covered(segments: Iterable[SessionState]) -> int:
    """Returns the token from which on to the end of the last segment `LATEST` rows are complete.

    0 where they are from before the first segment on.
    """
    first = 0
    for segment in segments:
        latest = segment.first_latest or 0
        is_whole = any(name.startswith(TOGETHER) for name in segment.kv_rows)
        first = min(first, latest) if latest <= segment.start and not is_whole else latest
    return first


def can_follow(segments: Sequence[SessionState], look_back: int) -> bool:
    """Says whether a pass that looks back so many tokens may follow the last of ``segments``."""
    return first_covered(segments) <= max(0, len(segments[-1].tokens) - look_back)


def check_layout(got: Layout, expected: Layout) -> None:
    """Raises a SessionError unless rows of the one layout fit a session of the other."""
    for name in sorted(got.keys() | expected.keys()):
        if got.get(name) != expected.get(name):
            raise SessionError(
                f"the state's KV cache has {shown(name)} as {_described(got.get(name))}, the "
                f"session's as {_described(expected.get(name))}: load the model as it was loaded "
                "for that state, or compute the text again"
            )


def check_counts(state: SessionState) -> None:
    """Raises a SessionError unless ``state`` has a row for each token it claims rows for."""
    n_rows, first = len(state.tokens) - state.start, state.first_latest
    for name, rows in state.kv_rows.items():
        n_found = rows.shape[TOKEN_AXIS]
        n_expected = len(state.tokens) - max(0, first or 0) if is_latest(name) else n_rows
        if state.start < 0 or n_found != n_expected:
            raise SessionError(
                f"the state has {n_found} rows of {name}, expected {n_expected} for its "
                "tokens: take another snapshot"
            )


def check_tokens(state: SessionState, known: Sequence[int], context: int, n_ids: int) -> None:
    """Raises a SessionError unless the tokens of ``state`` fit, and go on where ``known`` end.

    context: most tokens of the session. n_ids: tokens that its model reads.
    """
    if len(state.tokens) > context:
        raise SessionError(
            f"the state has {len(state.tokens)} tokens, the context {context}: use {LARGER_CONTEXT}"
        )
    new = state.tokens[state.start :]  # those before are the sequence's, which it has checked
    if new and not 0 <= min(new) <= max(new) < n_ids:
        raise SessionError(
            f"the state holds token ids from {min(new)} to {max(new)}, "
            f"expected 0 to {n_ids - 1}: it is another model's"
        )
    if state.tokens[: state.start] != tuple(known[: state.start]):
        raise SessionError(
            f"the state continues {state.start} tokens that are not the sequence's: restore "
            "what comes before it first"
        )


def check_reach(segments: Sequence[SessionState], look_back: int) -> None:
    """Raises a SessionError unless a pass that looks back so far may follow ``segments``."""
    if not can_follow(segments, look_back):
        raise SessionError(
            f"the state lacks rows that layers with a window look at, the last {look_back}: take a "
            "snapshot of all tokens"
        )


def check_continues(
    state: SessionState, known: Sequence[int], layout: Layout, context: int, n_ids: int
) -> None:
    """Raises a SessionError unless ``state`` can follow tokens that are ``known`` in a session.

    layout: of its KV cache. context, n_ids: as of `check_tokens`.
    """
    check_layout(state.layout, layout)
    check_counts(state)
    check_tokens(state, known, context, n_ids)


def _described(row: tuple[str, tuple[int, ...]] | None) -> str:
    return "nothing" if row is None else f"{row[0][1:]} rows of {list(row[1])}"


def _row_shape(rows: npt.NDArray[Any]) -> tuple[int, ...]:
    return (*rows.shape[:TOKEN_AXIS], *rows.shape[TOKEN_AXIS + 1 :])


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size
