"""Compiled drafters that look at nothing but texts, and the rounds in which they propose.

`runtime/drafting` says what drafters are. All calls hold Python's lock: they take microseconds, and
requests share what drafters learned.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import weakref
from array import array
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_void_p
from typing import Any, NamedTuple

import numpy as np

from edgedec.kernels import library
from edgedec.kernels.checks import Array, Floats, Integers, expect

_NODE = struct.Struct("@qdiii4x")  # ``DraftNode`` of src/draft_tree.h
N_TOP = 8  # largest logits of a row that are known
_ROOM = 64  # nodes that there is room for until more are asked for
_MAX_KNOWN = 16  # successors that are kept of any tokens, and more
_FAULTS = {
    -2: "got no text, or one that goes on another than before; expected all of its tokens",
    -3: "got a verified tree that has a child before its parent, or more nodes than were proposed",
}

Node = tuple[int, float, int, int, int]
"""Token, probability, parent, depth and the number of its drafter in the team."""


class Verified(NamedTuple):
    """A tree that was verified. Parents are indices of tokens before, or -1."""

    tokens: Sequence[int]
    parents: Sequence[int]


class Rows(NamedTuple):
    """Statistics of verified rows, the first that after the text, the others those after the nodes.

    Shapes: top_ids [n, 8] int64, top_logits [n, 8] float32, log_sum_exp [n] float32.
    """

    top_ids: Integers
    top_logits: Floats
    log_sum_exp: Floats


class Drafter:
    """What requests share of one compiled drafter."""

    def __init__(self, name: str, max_entries: int = 0) -> None:
        """name: `lookup`, `trigram` or `recycling`. max_entries: of the table of `trigram`.

        Raises:
            RuntimeError: The library is missing or has no such drafter.
        """
        self._library = _open()
        self.handle = self._library.edgedec_drafter_open(name.encode(), max_entries)
        if not self.handle:
            raise RuntimeError(f"the compiled kernels have no drafter {name}, or no memory for it")
        weakref.finalize(self, self._library.edgedec_drafter_close, self.handle).atexit = False

    def clear(self) -> None:
        """Forgets texts and what followed them."""
        self._library.edgedec_drafter_clear(self.handle)

    def known(self, before: int, last: int) -> dict[int, float]:
        """Returns what was learned of the tokens after two others, with their weights."""
        tokens, weights = (c_int64 * _MAX_KNOWN)(), (c_double * _MAX_KNOWN)()
        n = self._library.edgedec_drafter_known(
            self.handle, before, last, tokens, weights, _MAX_KNOWN
        )
        _check(min(n, 0))
        return dict(zip(tokens[:n], weights[:n], strict=True))

    def __len__(self) -> int:
        """Entries that it keeps."""
        return int(self._library.edgedec_drafter_size(self.handle))


class DraftTeam:
    """Drafters that propose together, and how far each can be believed, which requests share."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._library = _open()
        handles = (c_void_p * len(drafters))(*(drafter.handle for drafter in drafters))
        self.handle = self._library.edgedec_draft_team_open(handles, len(drafters))
        if not self.handle:
            raise MemoryError("no memory for drafters")
        weakref.finalize(self, self._library.edgedec_draft_team_close, self.handle).atexit = False


class DraftRounds:
    """A team's part in one request, whose text it follows."""

    def __init__(self, team: DraftTeam, prompt: Sequence[int]) -> None:
        """Begins with the prompt, which holds one token or more.

        Raises:
            OverflowError, TypeError: These are no tokens.
        """
        self._library = _open()
        tokens = array("q", prompt)
        if not tokens:
            raise ValueError("got a prompt without tokens, expected one or more")
        self._n_text = len(tokens)
        handle = self._library.edgedec_draft_rounds_open(team.handle, tokens.tobytes(), len(tokens))
        if not handle:
            raise MemoryError("no memory for drafters")
        self._handle: int | None = handle
        self._close = weakref.finalize(self, self._library.edgedec_draft_rounds_close, handle)
        self._close.atexit = False
        self._make_room(_ROOM)

    def propose(
        self, tokens: Sequence[int], most_nodes: int, depth: int, min_value: float
    ) -> list[Node]:
        """Returns the likeliest nodes that all propose behind ``tokens``, likeliest first.

        min_value: least probability of a node and all before it.
        """
        if most_nodes > self._room:
            self._make_room(most_nodes)
        n = self._library.edgedec_draft_rounds_grow(
            *self._text(tokens), most_nodes, depth, min_value, self._out, self._room
        )
        _check(min(n, 0))
        self._n_text = len(tokens)
        return list(_NODE.iter_unpack(self._shown[: n * _NODE.size]))

    def observe(
        self,
        tokens: Sequence[int],
        emitted: Sequence[int],
        n_accepted: int,
        verified: Verified | int,
        rows: Rows,
    ) -> None:
        """Has all learn from the round that emitted ``emitted`` behind ``tokens``.

        n_accepted: of the first emitted tokens, which were drafts.
        verified: the tree; a number stands for so many of the first nodes of the last proposal.

        Raises:
            ValueError: That is no such tree, or rows are none.
        """
        ids = parents = None
        if not isinstance(verified, int):
            ids, parents = _packed(verified.tokens), _packed(verified.parents)
            if len(ids) != len(parents):
                raise ValueError(f"got {len(ids) // 8} tokens, and parents of {len(parents) // 8}")
            verified = len(verified.tokens)
        n_rows = len(rows.log_sum_exp)
        result = self._library.edgedec_draft_rounds_observe(
            *self._text(tokens), _packed(emitted), len(emitted), n_accepted, ids, parents,
            verified,
            _bytes("top_ids", rows.top_ids, np.int64, (n_rows, N_TOP)),
            _bytes("top_logits", rows.top_logits, np.float32, (n_rows, N_TOP)),
            _bytes("log_sum_exp", rows.log_sum_exp, np.float32, (n_rows,)),
            n_rows,
        )  # fmt: skip
        _check(result)
        self._n_text = len(tokens)

    def end(self, tokens: Sequence[int]) -> None:
        """The output ended with exactly ``tokens``. Nothing else may be asked afterwards.

        Whoever was interrupted while it ended may say so again.
        """
        if self._handle is None:
            return
        text = self._text(tokens)
        self._handle = None  # an interrupt may come behind any line
        _check(self._library.edgedec_draft_rounds_end(*text))
        self._close()

    def longest_match(self) -> int:
        """Returns the length of the longest suffix that occurs earlier in the text followed."""
        return int(self._library.edgedec_draft_rounds_longest_match(self._own_handle()))

    def _text(self, tokens: Sequence[int]) -> tuple[int, int, bytes, int]:
        """Returns the handle and what is new of ``tokens``."""
        n_kept = min(self._n_text, len(tokens))
        return self._own_handle(), n_kept, _packed(tokens[n_kept:]), len(tokens) - n_kept

    def _own_handle(self) -> int:
        if self._handle is None:
            raise ValueError("the output has ended: begin another one")
        return self._handle

    def _make_room(self, n_nodes: int) -> None:
        n_bytes = n_nodes * _NODE.size
        self._shown, self._room = memoryview(bytearray(n_bytes)), n_nodes
        self._out = (ctypes.c_char * n_bytes).from_buffer(self._shown)


def _packed(tokens: Sequence[int]) -> bytes:
    return array("q", tokens).tobytes()


def _bytes(name: str, values: Array, dtype: type[np.generic], shape: tuple[int, ...]) -> bytes:
    if values.shape != shape or values.dtype != dtype:
        expect(name, values, dtype, shape)
    return values.tobytes()  # addresses of arrays take longer to get than these few bytes to copy


def _check(result: int) -> None:
    if result == 0:
        return
    if result in _FAULTS:
        raise ValueError(_FAULTS[result])
    raise MemoryError("no memory for drafters")


@functools.cache
def _open() -> ctypes.PyDLL:
    """Returns the library, whose functions keep Python's lock."""
    native = ctypes.PyDLL(str(library.library_path()))
    try:
        for name, argtypes, restype in _FUNCTIONS:
            function = getattr(native, name)
            function.argtypes, function.restype = argtypes, restype
    except AttributeError:
        raise library.wrong_version() from None
    return native


_TEXT = (c_void_p, c_int64, c_char_p, c_int64)  # a request; how its text changed
_FUNCTIONS: tuple[tuple[str, tuple[Any, ...], Any], ...] = (
    ("edgedec_drafter_open", (c_char_p, c_int64), c_void_p),
    ("edgedec_drafter_close", (c_void_p,), None),
    ("edgedec_drafter_clear", (c_void_p,), None),
    ("edgedec_drafter_size", (c_void_p,), c_int64),
    (
        "edgedec_drafter_known",
        (c_void_p, c_int64, c_int64, POINTER(c_int64), POINTER(c_double), c_int),
        c_int,
    ),
    ("edgedec_draft_team_open", (POINTER(c_void_p), c_int64), c_void_p),
    ("edgedec_draft_team_close", (c_void_p,), None),
    ("edgedec_draft_rounds_open", (c_void_p, c_char_p, c_int64), c_void_p),
    ("edgedec_draft_rounds_close", (c_void_p,), None),
    (
        "edgedec_draft_rounds_grow",
        (*_TEXT, c_int64, c_int64, c_double, c_void_p, c_int64),
        c_int,
    ),
    (
        "edgedec_draft_rounds_observe",
        (
            *(*_TEXT, c_char_p, c_int64, c_int64, c_char_p, c_char_p, c_int64),
            *(c_char_p, c_char_p, c_char_p, c_int64),
        ),
        c_int,
    ),
    ("edgedec_draft_rounds_end", _TEXT, c_int),
    ("edgedec_draft_rounds_longest_match", (c_void_p,), c_int64),
)
"""What src/draft_api.cc exports: name, arguments, result."""
