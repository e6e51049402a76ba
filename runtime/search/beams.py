"""Beam search, plain and diverse, in a token tree that has what beams have in common once.

Sources: diverse beam search (Vijayakumar et al., 2016), whose groups take turns at every token and
are penalised for tokens that earlier groups chose; when a search ends is as in transformers with
``early_stopping=False``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import ConfigError
from edgedec.runtime.config.checks import check_count, check_number
from edgedec.runtime.search.growing_tree import MAX_NODES, GrowingTree, Node
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.sequence import TokenSequence

MAX_BEAMS = 64
"""Rows of one pass."""

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class BeamConfig:
    """What a beam search is asked for.

    n_beams: texts that are kept at every token, of all groups.
    n_groups: that they are divided into; 1 is plain beam search.
    diversity: what a token's log-probability loses for each beam of an earlier group that chose it.
    length_penalty: a text's score is its log-probability divided by its length to this power.
    max_new_tokens: that a text has at most.
    """

    n_beams: int = 4
    n_groups: int = 1
    diversity: float = 0.5
    length_penalty: float = 1.0
    max_new_tokens: int = 64

    def __post_init__(self) -> None:
        check_count("n_beams", self.n_beams, 1, "texts that are kept at every token")
        check_count("n_groups", self.n_groups, 1, "1 is plain beam search")
        check_count("max_new_tokens", self.max_new_tokens, 1, "the most tokens of a text")
        check_number("diversity", self.diversity, 0, 100, "0.2 to 0.8 is usual")
        check_number("length_penalty", self.length_penalty, -10, 10, "1 is the average per token")
        if self.n_beams > MAX_BEAMS or self.n_beams % self.n_groups:
            raise ConfigError(
                f"n_beams is {self.n_beams} in {self.n_groups} groups, expected a multiple "
                f"of the groups, at most {MAX_BEAMS}"
            )


@dataclass(frozen=True)
class BeamText:
    """A text that a search found.

    tokens: a token that ended it included.
    log_prob: of the whole, in nats.
    score: by which texts are ranked; penalties for what other groups chose are part of it.
    """

    tokens: tuple[int, ...]
    log_prob: float
    score: float


class _Beam(Node):
    """A text in the making. score: log_prob less penalties."""

    def __init__(self, token: int, parent: _Beam | None, log_prob: float, score: float) -> None:
        super().__init__(token, parent)
        self.log_prob = log_prob
        self.score = score


class _Group:
    """The beams of a group, and the texts that ended."""

    def __init__(self, root: _Beam, size: int, config: BeamConfig, stops: frozenset[int]) -> None:
        self.beams = [root]
        self.ended: list[BeamText] = []
        self.is_done = False
        self._size = size
        self._config = config
        self._stops = stops
        self._n_tokens = 0

    def step(self, log_probs: Mapping[Node, Float64], chosen: Counter[int]) -> None:
        """Adds a token to every beam. chosen: what earlier groups chose, and then this one, too."""
        self._n_tokens += 1
        going_on: list[_Beam] = []
        for rank, beam in enumerate(self._candidates(log_probs, chosen)):
            if len(going_on) == self._size:
                break
            if beam.token not in self._stops:
                going_on.append(beam)
            elif rank < self._size:
                self._end(beam)
        self.beams = going_on
        chosen.update(beam.token for beam in going_on)
        self.is_done = not going_on or self._cannot_improve(going_on[0])
        if self._n_tokens == self._config.max_new_tokens and not self.is_done:
            for beam in going_on:
                self._end(beam)
            self.is_done = True

    def _candidates(
        self, log_probs: Mapping[Node, Float64], chosen: Counter[int]
    ) -> Iterator[_Beam]:
        """Yields what the beams may go on with, the best first."""
        rows = np.stack([log_probs[beam] for beam in self.beams])
        scores = rows + np.array([[beam.score] for beam in self.beams])
        for token, n in chosen.items():
            scores[:, token] -= self._config.diversity * n
        n_wanted = min(scores.size, self._size * (1 + len(self._stops)))
        flat = scores.ravel()
        best = np.argpartition(-flat, n_wanted - 1)[:n_wanted]
        for place in best[np.argsort(-flat[best], kind="stable")].tolist():
            i, token = divmod(place, scores.shape[1])
            beam = self.beams[i]
            log_prob = beam.log_prob + float(rows[i, token])
            yield _Beam(token, beam, log_prob, float(scores[i, token]))

    def _end(self, beam: _Beam) -> None:
        score = beam.score / self._n_tokens**self._config.length_penalty
        self.ended.append(BeamText(tuple(beam.tokens), beam.log_prob, score))
        self.ended = sorted(self.ended, key=lambda text: -text.score)[: self._size]

    def _cannot_improve(self, best: _Beam) -> bool:
        """Says whether no beam is likely to end better than those that ended."""
        possible = best.score / self._n_tokens**self._config.length_penalty
        return len(self.ended) == self._size and possible <= self.ended[-1].score


def beam_search(
    sequence: TokenSequence, anchor: int, config: BeamConfig, stops: frozenset[int]
) -> Passes[list[BeamText]]:
    """Returns the texts that follow what ``sequence`` holds and ``anchor``, the best first.

    The sequence goes back to what it held, or as far as it can.
    """
    n_before = sequence.n_tokens
    root = _Beam(anchor, None, 0.0, 0.0)
    size = config.n_beams // config.n_groups
    groups = [_Group(root, size, config, stops) for _ in range(config.n_groups)]
    most = min(MAX_NODES, sequence.context - n_before)
    tree = GrowingTree(sequence, most, is_narrowing=True)
    try:
        while alive := [group for group in groups if not group.is_done]:
            beams = list(dict.fromkeys(beam for group in alive for beam in group.beams))
            rows = yield tree.grown(beams)
            log_probs: dict[Node, Float64] = {}
            for i, beam in enumerate(beams):
                rows.stats.check_sum(i)
                log_probs[beam] = rows.logits[i].astype(np.float64) - rows.stats.log_sum_exp[i]
            chosen: Counter[int] = Counter()
            for group in alive:
                group.step(log_probs, chosen)
    finally:
        sequence.rewind(n_before)
    return sorted((text for group in groups for text in group.ended), key=lambda t: -t.score)
