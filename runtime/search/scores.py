"""How likely the tokens of a text are, each after those before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from edgedec.models.errors import ConfigError, SessionError
from edgedec.runtime.config.checks import check_callable, checked_counts
from edgedec.runtime.config.generation import check_n_likeliest
from edgedec.runtime.engine.lending import Lending
from edgedec.runtime.sampling.logprobs import TokenLogprob, token_logprob
from edgedec.runtime.search.growing_tree import GrowingTree, Node
from edgedec.runtime.sequences.passes import Pass, Passes, while_idle
from edgedec.runtime.sequences.prefill import caught_up, check_fits
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.prompt import Prompt

_CHUNK = 32
"""Tokens per pass: a chunk's logits take _CHUNK rows of the vocabulary's width."""
_MAX_ROWS = 64
"""Rows of a pass over several continuations, whose logits take as much each."""


def score(
    lending: Lending, prompt: Prompt, n_top: int, is_over: Callable[[], bool]
) -> list[TokenLogprob]:
    """Returns how likely the tokens of ``prompt`` are from the second on; see `Engine.score`."""
    if lending.loaded.encoder.has_source:
        raise SessionError(
            "an encoder reads this model's prompts, so their tokens have no probabilities: score "
            "continuations of a prompt instead"
        )
    tokens = lending.encode(prompt)
    check_n_likeliest("n_top", n_top)
    check_callable("is_over", is_over)

    def steps(sequence: TokenSequence) -> Passes[list[TokenLogprob] | None]:
        return while_idle(_score(sequence, tokens, n_top), is_over)

    return lending.run(tokens, steps, is_recalled=False) or []  # every row is wanted


def _score(
    sequence: TokenSequence, tokens: Sequence[int], n_top: int
) -> Passes[list[TokenLogprob]]:
    sequence.truncate(0)
    logprobs: list[TokenLogprob] = []
    for start in range(0, len(tokens) - 1, _CHUNK):
        chunk = tokens[start : min(start + _CHUNK, len(tokens) - 1)]
        rows = yield Pass(sequence, TokenTree.chain(chunk), range(len(chunk)))
        followers = tokens[start + 1 : start + 1 + len(chunk)]
        logprobs += [token_logprob(rows, i, token, n_top) for i, token in enumerate(followers)]
        sequence.commit(range(len(chunk)))
    return logprobs


def score_continuations(
    lending: Lending, prompt: Prompt, continuations: Sequence[Sequence[int]]
) -> list[float]:
    """Returns how likely each of ``continuations`` is; see `Engine.score_continuations`."""
    logprobs = continuation_logprobs(lending, prompt, continuations)
    return [math.fsum(token.logprob for token in tokens) for tokens in logprobs]


def continuation_logprobs(
    lending: Lending, prompt: Prompt, continuations: Sequence[Sequence[int]], n_top: int = 0
) -> list[list[TokenLogprob]]:
    """Returns how likely each token of ``continuations`` is, and the ``n_top`` likeliest there."""
    loaded, tokens = lending.loaded, lending.encode(prompt)
    counted = [checked_counts("a continuation", ids) for ids in continuations]
    for continuation in counted:
        if not continuation:
            raise ConfigError("a continuation is empty, expected at least one token id")
        check_fits([*tokens, *continuation], loaded.context, loaded.model.n_token_ids)
    return lending.run(tokens, lambda sequence: logprobs_after(sequence, tokens, counted, n_top))


def logprobs_after(
    sequence: TokenSequence,
    prompt: Sequence[int],
    continuations: Sequence[Sequence[int]],
    n_top: int = 0,
) -> Passes[list[list[TokenLogprob]]]:
    """Returns how likely the tokens of each continuation of ``prompt`` are.

    Tokens that continuations begin with are computed once, and several continuations in one pass
    where the graph can run trees.
    """
    yield from caught_up(sequence, prompt[:-1])
    most = min(_MAX_ROWS, sequence.context - sequence.n_tokens)
    logprobs: list[list[TokenLogprob]] = []
    try:
        while len(logprobs) < len(continuations):
            branches = _Branches(prompt[-1], most if sequence.model.capabilities.trees else 0)
            rest = continuations[len(logprobs) :]
            n_taken = branches.take(rest)
            rows = yield GrowingTree(sequence, 0).grown(branches.nodes)
            for i in range(len(branches.nodes)):
                rows.stats.check_sum(i)
            logprobs += [branches.logprobs(rows, tokens, n_top) for tokens in rest[:n_taken]]
    finally:
        sequence.truncate(sequence.n_tokens)
    return logprobs


class _Branches:
    """Continuations of one pass. nodes: the tokens that have one behind them, parents first."""

    def __init__(self, anchor: int, most: int) -> None:
        """most: nodes, but for what one continuation needs; 0: one continuation."""
        self.nodes = [Node(anchor, None)]
        self._most = most
        self._places: dict[tuple[int, ...], int] = {(): 0}

    def take(self, continuations: Sequence[Sequence[int]]) -> int:
        """Takes as many as there is room for, at least one; returns how many."""
        for n_taken, tokens in enumerate(continuations):
            beginnings = [tuple(tokens[:i]) for i in range(1, len(tokens))]
            new = [beginning for beginning in beginnings if beginning not in self._places]
            if n_taken and new and len(self.nodes) + len(new) > self._most:
                return n_taken
            for beginning in new:
                parent = self.nodes[self._places[beginning[:-1]]]
                self._places[beginning] = len(self.nodes)
                self.nodes.append(Node(beginning[-1], parent))
        return len(continuations)

    def logprobs(self, rows: Rows, tokens: Sequence[int], n_top: int) -> list[TokenLogprob]:
        """Returns how likely the tokens of a continuation that was taken are."""
        places = [self._places[tuple(tokens[:i])] for i in range(len(tokens))]
        pairs = zip(places, tokens, strict=True)
        return [token_logprob(rows, place, token, n_top) for place, token in pairs]
