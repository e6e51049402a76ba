"""KV rows of earlier prompts and outputs, found by the longest prefix they share with a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from edgedec.runtime.sequences.state import (
    TOGETHER,
    TOKEN_AXIS,
    KVRows,
    Layout,
    SessionState,
    can_follow,
    cut,
    is_latest,
)

Snapshot = Callable[[int, int], SessionState]
"""Called with a number of tokens and how many of them come without rows, as `snapshot` is."""


class _Node:
    """Tokens that follow those of its parents, and their rows; `LATEST` ones of more or fewer.

    used: when a text through here was last asked for.
    """

    __slots__ = ("children", "kv_rows", "parent", "tokens", "used")

    def __init__(
        self, tokens: tuple[int, ...], kv_rows: KVRows, parent: _Node | None, used: int
    ) -> None:
        self.tokens = tokens
        self.kv_rows = kv_rows
        self.parent = parent
        self.used = used
        self.children: dict[int, _Node] = {}  # by the first of their tokens

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self.kv_rows.values())

    def n_common(self, tokens: Sequence[int]) -> int:
        """Returns with how many of the node's tokens ``tokens`` begins."""
        node_tokens = self.tokens
        n = min(len(node_tokens), len(tokens))
        if node_tokens[:n] == tuple(tokens[:n]):
            return n
        return next(i for i in range(n) if node_tokens[i] != tokens[i])


class PrefixCache:
    """One radix tree of tokens for each model. What texts share is stored once.

    Rows take at most ``max_bytes``, over all models. The least recently used ends of texts are
    forgotten first, so that a beginning outlives what hangs on it.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._roots: dict[str, _Node] = {}
        self._layouts: dict[str, Layout] = {}
        self._now = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(node.nbytes for node in self._nodes())

    def find(
        self, model: str, tokens: Sequence[int], layout: Layout, look_back: int = 0
    ) -> list[SessionState]:
        """Returns the longest known prefix of ``tokens`` in segments, each after the one before.

        The segments stay what they are, whatever the cache forgets later. None are found for a
        session whose KV cache has another ``layout`` than the rows.

        look_back: of the session; passes may follow what is found.
        """
        if self._layouts.get(model) != layout:
            return []
        self._now += 1
        segments = self._segments(model, tokens)
        for node, _, _ in self._way(model, tokens):
            node.used = self._now
        while segments and not can_follow(segments, look_back):
            segments.pop()
        return segments

    def insert(
        self, model: str, tokens: Sequence[int], snapshot: Snapshot, look_back: int = 0
    ) -> None:
        """Learns ``tokens``, or as many of the first of them as there may be bytes for.

        Where layers keep the latest rows only, it is all of ``tokens`` or none: of fewer, rows that
        a pass behind them looks at may be gone.

        Args:
            snapshot: Gives the rows that are not known yet, once room was made for them.
        """
        # Without the rows of any token but those that layers with a window have.
        ends = snapshot(len(tokens), len(tokens))
        if self._layouts.setdefault(model, ends.layout) != ends.layout:
            self._roots.pop(model, None)
            self._layouts[model] = ends.layout
        segments = self._segments(model, tokens)
        n_known = len(segments[-1].tokens) if segments else 0
        n_kept = min(len(tokens), (self.max_bytes - ends.nbytes) // max(1, ends.row_nbytes))
        n_bytes = (n_kept - n_known) * ends.row_nbytes + ends.nbytes
        n_along = sum(node.nbytes for node, _, _ in self._way(model, tokens))
        if look_back and (n_kept < len(tokens) or n_along + n_bytes > self.max_bytes):
            return
        self._now += 1
        parent = self._root(model)
        for node, _, n_common in list(self._way(model, tokens)):
            if n_common < len(node.tokens) and n_kept > n_known:
                self._split(node, n_common)
            node.used = self._now
            parent = node
        if n_kept > n_known:
            self._make_room(n_bytes)
            kv_rows = snapshot(n_kept, n_known).kv_rows
            if segments and can_follow(segments, look_back):
                kv_rows = _own_latest(kv_rows, n_kept - n_known)
            new = _Node(tuple(tokens[n_known:n_kept]), kv_rows, parent, self._now)
            parent.children[new.tokens[0]] = new

    def n_known(self, model: str, tokens: Sequence[int]) -> int:
        """Returns the length of the longest known prefix; counts as no use of it."""
        return sum(n_common for _, _, n_common in self._way(model, tokens))

    def texts(self, model: str) -> Iterator[tuple[int, ...]]:
        """Yields every text that is no beginning of another one."""
        waiting: list[tuple[tuple[int, ...], _Node]] = [((), self._root(model))]
        while waiting:
            tokens, node = waiting.pop()
            if not node.children:
                yield (*tokens, *node.tokens)
            waiting += (((*tokens, *node.tokens), child) for child in node.children.values())

    def _segments(self, model: str, tokens: Sequence[int]) -> list[SessionState]:
        """Returns what is known along ``tokens``, views of it."""
        segments = []
        for node, start, n_common in self._way(model, tokens):
            kv_rows = cut(node.kv_rows, len(node.tokens), 0, n_common)
            segments.append(SessionState(tuple(tokens[: start + n_common]), start, kv_rows))
        return segments

    def _root(self, model: str) -> _Node:
        return self._roots.setdefault(model, _Node((), {}, None, 0))

    def _way(self, model: str, tokens: Sequence[int]) -> Iterator[tuple[_Node, int, int]]:
        """Yields the nodes along ``tokens``, where each starts and how many tokens it shares."""
        node, start = self._root(model), 0
        while start < len(tokens) and (child := node.children.get(tokens[start])) is not None:
            n_common = child.n_common(tokens[start : start + len(child.tokens)])
            yield child, start, n_common
            if n_common < len(child.tokens):
                return
            node, start = child, start + n_common

    def _split(self, node: _Node, n_tokens: int) -> None:
        """Gives what comes after the first ``n_tokens`` of ``node`` a node of its own."""
        n_rows = len(node.tokens)
        # Copies, for views would keep the whole of the rows alive after one half is forgotten.
        upper, lower = (
            {name: rows.copy() for name, rows in cut(node.kv_rows, n_rows, start, stop).items()}
            for start, stop in ((0, n_tokens), (n_tokens, n_rows))
        )
        rest = _Node(node.tokens[n_tokens:], lower, node, node.used)
        rest.children = node.children
        for child in rest.children.values():
            child.parent = rest
        node.tokens, node.kv_rows = node.tokens[:n_tokens], upper
        node.children = {rest.tokens[0]: rest}

    def _make_room(self, n_bytes: int) -> None:
        """Forgets ends of texts until ``n_bytes`` more are allowed; not those in use now."""
        excess = self.nbytes + n_bytes - self.max_bytes
        while excess > 0:
            leaves = [node for node in self._nodes() if not node.children]
            oldest = min(leaves, key=lambda node: node.used)
            assert oldest.parent is not None
            assert oldest.used < self._now, "the text in use fits by itself"
            del oldest.parent.children[oldest.tokens[0]]
            excess -= oldest.nbytes

    def _nodes(self) -> Iterator[_Node]:
        waiting = [child for root in self._roots.values() for child in root.children.values()]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children.values()


def _own_latest(kv_rows: KVRows, n_own: int) -> KVRows:
    """Returns rows of ``n_own`` tokens without the `LATEST` rows of tokens before them."""
    return {
        name: rows[:, :, max(0, rows.shape[TOKEN_AXIS] - n_own) :].copy()
        if is_latest(name) and not name.startswith(TOGETHER)
        else rows
        for name, rows in kv_rows.items()
    }
