"""The likeliest span of a text as an answer, exactly: branch and bound over the trie of its spans.

A span's probability is that of its tokens and of an end behind them. It only falls along the way
down, so what a place has by then bounds all spans below it. Places are computed many in a pass, the
most promising first, together with those below that are likely to be needed next.

Source: exact-extract ("How Optimal is Greedy Decoding for Extractive Question Answering?", Castel
et al., 2022), which scores all spans.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import numpy as np

from edgedec.runtime.search.growing_tree import MAX_NODES, GrowingTree, Node
from edgedec.runtime.search.spans import Spans, SpanSet
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.rows import Float32
from edgedec.runtime.sequences.sequence import TokenSequence

_WIDTH = 16
"""Places per pass."""

_GUESS = math.log(0.8)
"""How likely it is that a span goes on, if it could in one way only."""
_MAX_GUESSED = 4
"""Ways to go on, of which one may be computed before it is known how likely it is."""


@dataclass(frozen=True)
class QuotedSpan:
    """A span of a text. offset: where it begins, in characters. log_prob: in nats."""

    text: str
    offset: int
    log_prob: float

    @property
    def probability(self) -> float:
        """Of being the whole answer."""
        return math.exp(self.log_prob)


class _Place(Node):
    """A place in the trie. bound: log-probability of its tokens; a guess until that is known."""

    def __init__(self, spans: SpanSet, token: int, parent: _Place | None, bound: float) -> None:
        super().__init__(token, parent)
        self.spans = spans
        self.bound = bound
        self.children: dict[int, _Place] | None = None


@dataclass
class Search:
    """A search among the spans of one text, and what it came to.

    ends: tokens that end an answer. best: the likeliest spans, none twice, the likeliest first.
    n_passes, n_places: computed by now.
    """

    spans: Spans
    ends: frozenset[int]
    decode: Callable[[list[int]], str]
    n_best: int = 2
    best: list[QuotedSpan] = field(default_factory=list)
    n_passes: int = 0
    n_places: int = 0

    def run(self, sequence: TokenSequence, anchor: int) -> Passes[None]:
        """Finds the likeliest spans as answers to what ``sequence`` holds and ``anchor``.

        The sequence is left as it was.
        """
        room = sequence.context - sequence.n_tokens
        can_branch = sequence.model.capabilities.trees
        width = max(1, min(_WIDTH, (room - 1) // self.spans.max_tokens)) if can_branch else 1
        tree = GrowingTree(sequence, min(MAX_NODES, room) if can_branch else 0)
        ready = _Queue([_Place(self.spans.root, anchor, None, 0.0)])
        try:
            while ready.best > self.threshold:
                chosen = self._choose(ready, width)
                rows = yield tree.grown(chosen)
                self.n_passes += 1
                self.n_places += len(chosen)
                for i, place in enumerate(chosen):
                    rows.stats.check_sum(i)
                    self._learn(place, rows.logits[i], float(rows.stats.log_sum_exp[i]))
                in_pass = set(chosen)
                children = (child for place in chosen for child in (place.children or {}).values())
                ready.extend(child for child in children if child not in in_pass)
        finally:
            sequence.truncate(sequence.n_tokens)

    @property
    def threshold(self) -> float:
        """What a place has to exceed for a span below it to be among the best."""
        return self.best[-1].log_prob if len(self.best) == self.n_best else -math.inf

    def _choose(self, ready: _Queue, width: int) -> list[_Place]:
        """Takes the places of a pass, parents before their children."""
        chosen: list[_Place] = []
        guesses = _Queue([])
        while len(chosen) < width:
            queue = max(ready, guesses, key=lambda search: search.best)
            if queue.best <= self.threshold:
                break
            place = queue.pop()
            chosen.append(place)
            if width > 1:
                guesses.extend(self._guess(place))
        return chosen

    def _guess(self, place: _Place) -> Iterable[_Place]:
        """Returns what is likely to follow a place that is about to be computed."""
        ids, which = self.spans.followers(place.spans)
        if len(ids) > _MAX_GUESSED:
            return ()
        bound = place.bound + _GUESS - math.log(max(1, len(ids)))
        place.children = {
            token: _Place(self._below(place, which, i), token, place, bound)
            for i, token in enumerate(ids.tolist())
        }
        return place.children.values()

    def _below(self, place: _Place, which: np.ndarray, i: int) -> SpanSet:
        return SpanSet(place.spans.rows[which == i], place.spans.depth + 1)

    def _learn(self, place: _Place, row: Float32, total: float) -> None:
        """Takes in the logits behind a place: the span that ends there, and what may follow."""
        log_end = float(np.logaddexp.reduce(row[list(self.ends)].astype(np.float64))) - total
        if place.parent is not None and place.bound + log_end > self.threshold:
            self._offer(place, place.bound + log_end)
        ids, which = self.spans.followers(place.spans)
        bounds = place.bound + (row[ids].astype(np.float64) - total)
        guessed, place.children = place.children or {}, {}
        for i in np.flatnonzero(bounds > self.threshold).tolist():
            token = int(ids[i])
            child = guessed.get(token)
            if child is None:
                child = _Place(self._below(place, which, i), token, place, 0.0)
            child.bound = float(bounds[i])
            place.children[token] = child
        for token, child in guessed.items():
            if token not in place.children:
                child.bound = -math.inf

    def _offer(self, place: _Place, log_prob: float) -> None:
        text = self.spans.quoted(place.spans, place.tokens, self.decode)
        if text:
            offset = int(self.spans.offsets[place.spans.rows[0]])
            self.best = ranked([*self.best, QuotedSpan(text, offset, log_prob)], self.n_best)


def ranked(spans: Iterable[QuotedSpan], n: int) -> list[QuotedSpan]:
    """Returns the likeliest spans of different texts, the likeliest first."""
    by_text: dict[str, QuotedSpan] = {}
    for span in sorted(spans, key=lambda span: (-span.log_prob, span.offset)):
        by_text.setdefault(span.text, span)
    return list(by_text.values())[:n]


class _Queue:
    """Places, the most promising first, of equals the one that came first."""

    def __init__(self, places: Iterable[_Place]) -> None:
        self._heap: list[tuple[float, int, _Place]] = []
        self._order = count()
        self.extend(places)

    def push(self, place: _Place) -> None:
        """Adds a place."""
        heappush(self._heap, (-place.bound, next(self._order), place))

    def extend(self, places: Iterable[_Place]) -> None:
        """Adds places."""
        for place in places:
            self.push(place)

    @property
    def best(self) -> float:
        """The bound of the most promising place; -inf if there is none."""
        return -self._heap[0][0] if self._heap else -math.inf

    def pop(self) -> _Place:
        """Returns the most promising place, which is gone then."""
        return heappop(self._heap)[2]
