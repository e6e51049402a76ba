"""KV rows of earlier prompts and outputs, found by the longest prefix they share with a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from edgedec.runtime.sessions.state import KVRows, Layout, SessionState, cut

Snapshot = Callable[[int, int], SessionState]
"""Called with a number of tokens and how many of them come without rows, as `snapshot` is."""


class _Node:
    """Tokens that follow those of its parents, and their rows.

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
        own = self.tokens
        n = min(len(own), len(tokens))
        if own[:n] == tuple(tokens[:n]):
            return n
        return next(i for i in range(n) if own[i] != tokens[i])


class PromptCache:
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

    def find(self, model: str, tokens: Sequence[int], layout: Layout) -> list[SessionState]:
        """Returns the longest known prefix of ``tokens`` in pieces, each to follow the one before.

        The pieces stay what they are, whatever the cache forgets later. None are found for a
        session whose KV cache has another ``layout`` than the rows.
        """
        if self._layouts.get(model) != layout:
            return []
        self._now += 1
        pieces: list[SessionState] = []
        for node, start, n_common in self._way(model, tokens):
            node.used = self._now
            stop = start + n_common
            pieces.append(SessionState(tuple(tokens[:stop]), start, cut(node.kv_rows, 0, n_common)))
        return pieces

    def insert(self, model: str, tokens: Sequence[int], snapshot: Snapshot) -> None:
        """Learns ``tokens``, or as many of the first of them as there may be bytes for.

        Args:
            snapshot: Gives the rows that are not known yet, once room was made for them.
        """
        nothing = snapshot(0, 0)
        if self._layouts.setdefault(model, nothing.layout) != nothing.layout:
            self._roots.pop(model, None)
            self._layouts[model] = nothing.layout
        n_known = self.n_known(model, tokens)
        n_kept = min(len(tokens), self.max_bytes // nothing.row_nbytes)
        self._now += 1
        parent = self._root(model)
        for node, _, n_common in list(self._way(model, tokens)):
            if n_common < len(node.tokens) and n_kept > n_known:
                self._split(node, n_common)
            node.used = self._now
            parent = node
        if n_kept > n_known:
            self._make_room((n_kept - n_known) * nothing.row_nbytes)
            state = snapshot(n_kept, n_known)
            new = _Node(tuple(tokens[n_known:n_kept]), state.kv_rows, parent, self._now)
            parent.children[new.tokens[0]] = new

    def n_known(self, model: str, tokens: Sequence[int]) -> int:
        """Returns the length of the longest known prefix; counts as no use of it."""
        return sum(n_common for _, _, n_common in self._way(model, tokens))

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
        # Copies, for views would keep the whole of the rows alive after one half is forgotten.
        upper, lower = (
            {name: rows.copy() for name, rows in cut(node.kv_rows, start, stop).items()}
            for start, stop in ((0, n_tokens), (n_tokens, len(node.tokens)))
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
