"""The texts of a beam search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgedec.models.errors import SessionError
from edgedec.runtime.engine.lending import Lending
from edgedec.runtime.search.beams import BeamConfig, beam_search
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.prefill import caught_up
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.text.prompt import Prompt


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


def find_beams(lending: Lending, prompt: Prompt, config: BeamConfig) -> list[Beam]:
    """Returns the texts that a beam search finds; see `Engine.beam_search`."""
    loaded = lending.loaded
    if not loaded.model.capabilities.trees:
        raise SessionError("this bundle's graph cannot run beams: export with edgedec's own graph")
    tokens, stops = lending.encode(prompt), frozenset(loaded.stop_token_ids)
    return lending.run(
        tokens,
        lambda sequence: _search(sequence, tokens, config, stops, loaded.tokenizer.decode),
        n_new=config.max_new_tokens,
    )


def _search(
    sequence: TokenSequence,
    tokens: Sequence[int],
    config: BeamConfig,
    stops: frozenset[int],
    decode: Callable[[Sequence[int]], str],
) -> Passes[list[Beam]]:
    """Returns the texts that follow ``tokens``, the best first."""
    yield from caught_up(sequence, tokens[:-1])
    beams = yield from beam_search(sequence, tokens[-1], config, stops)
    return [Beam(decode(beam.tokens), beam.tokens, beam.log_prob, beam.score) for beam in beams]
