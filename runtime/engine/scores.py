"""How likely the tokens of a text are, each after those before it."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.runtime.sampling.logprobs import TokenLogprob, token_logprob
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

_CHUNK = 32
"""Tokens per pass: a chunk's logits take _CHUNK rows of the vocabulary's width."""


def score(sequence: TokenSequence, tokens: Sequence[int], n_top: int) -> Passes[list[TokenLogprob]]:
    """Returns how likely ``tokens`` are from the second on; they are committed then, but the last.

    Every row is wanted, so nothing that the KV cache holds of them is of use.
    """
    sequence.truncate(0)
    found: list[TokenLogprob] = []
    for start in range(0, len(tokens) - 1, _CHUNK):
        chunk = tokens[start : min(start + _CHUNK, len(tokens) - 1)]
        rows = yield Pass(sequence, TokenTree.chain(chunk), range(len(chunk)))
        followers = tokens[start + 1 : start + 1 + len(chunk)]
        found += [token_logprob(rows, i, token, n_top) for i, token in enumerate(followers)]
        sequence.commit(range(len(chunk)))
    return found
