"""The texts of a beam search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgedec.runtime.search.beams import BeamConfig, beam_search
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.prefill import caught_up
from edgedec.runtime.sequences.sequence import TokenSequence


@dataclass(frozen=True)
class Beam:
    """A text of a beam search.

    token_ids: a token that ended it included. log_prob: of the whole, in nats. score: by which
    texts are ranked.
    """

    text: str
    token_ids: tuple[int, ...]
    log_prob: float
    score: float


def find_beams(
    sequence: TokenSequence,
    tokens: Sequence[int],
    config: BeamConfig,
    stops: frozenset[int],
    decode: Callable[[Sequence[int]], str],
) -> Passes[list[Beam]]:
    """Returns the texts that follow ``tokens``, the best first."""
    yield from caught_up(sequence, tokens[:-1])
    found = yield from beam_search(sequence, tokens[-1], config, stops)
    return [Beam(decode(one.tokens), one.tokens, one.log_prob, one.score) for one in found]
