"""Several alternative completions at once.

Named after Superposed Decoding (Shen et al., 2024), whose purpose it serves but not its method:
that feeds the model one weighted sum of the k last embeddings, so that one row a step serves all k
completions. Such a sum is no token, and compiled graphs are fed tokens; nor are its completions the
model's own. Here they are k branches of one token tree over a shared prefix, one pass over k rows a
step. Where such a pass costs little more than one row, that is as cheap, and every probability is
exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edgedec.models.errors import LARGER_CONTEXT, SessionError
from edgedec.runtime.config.suggestion import SuggestConfig
from edgedec.runtime.decoding.switching.policy import Signal
from edgedec.runtime.decoding.switching.stop_rule import StopRule
from edgedec.runtime.drafting.best_first import MAX_PROBABILITY
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import Progress
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

EndReason = Literal["length", "stop", "unsure"]
"""It is as long as asked for; a stop token; where the model is likely to be wrong."""


@dataclass(frozen=True)
class Suggestion:
    """One completion.

    log_probs: of each token after those before, at temperature 1. Units: nats.
    end: why it ends.
    """

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    end: EndReason = "length"

    @property
    def score(self) -> float:
        """Log-probability of the whole. Units: nats."""
        return sum(self.log_probs)

    def probabilities(self) -> list[float]:
        """Returns the probability of each token, none of them certain."""
        return [min(MAX_PROBABILITY, math.exp(log_prob)) for log_prob in self.log_probs]


@dataclass
class _Branch:
    """A completion in the making. row: that its last token hangs on, in the pass's tree."""

    tokens: list[int]
    log_probs: list[float]
    rule: StopRule
    row: int = 0
    end: EndReason | None = None

    def extend(self, stats: RowStats, index: int, config: SuggestConfig) -> None:
        """Adds the token that a row of ``stats`` chooses, or ends before it."""
        if self.rule.should_stop(Signal.of(stats, index)):
            self.end = "unsure"
            return
        token, log_prob = _choose(_candidates(stats, index), self.tokens, config.no_repeat)
        if token in config.stop_token_ids:
            self.end = "stop"
            return
        self.tokens.append(token)
        self.log_probs.append(log_prob)


def find_completions(
    sequence: TokenSequence,
    anchor: int,
    config: SuggestConfig,
    on_progress: Progress | None = None,
) -> Passes[list[Suggestion]]:
    """Returns completions with different first tokens, the likeliest first.

    The first tokens are the likeliest but for stop tokens, fewer than k if there are no more; each
    is continued greedily. The sequence is left as it was.

    Args:
        anchor: The text's last token. The sequence has committed all before it.
        on_progress: Called with ("suggest", tokens done, tokens in all) between passes.

    Raises:
        SessionError: The tree does not fit the context.
    """
    needed = sequence.n_tokens + 1 + config.k * (config.n_tokens - 1)
    if needed > sequence.context:
        raise SessionError(
            f"{config.k} suggestions of {config.n_tokens} tokens need {needed} positions, the "
            f"context has {sequence.context}: ask for fewer or shorter ones, or use "
            f"{LARGER_CONTEXT}"
        )
    try:
        return (yield from _grow(sequence, anchor, config, on_progress))
    finally:
        sequence.truncate(sequence.n_tokens)  # forgets the pass


def _grow(
    sequence: TokenSequence, anchor: int, config: SuggestConfig, on_progress: Progress | None
) -> Passes[list[Suggestion]]:
    stops = config.stop_token_ids
    tokens, parents = [anchor], [-1]
    rows = yield Pass(sequence, TokenTree((anchor,), (-1,)), (0,), with_logits=False)
    stats = rows.stats
    firsts = [(token, p) for token, p in _candidates(stats, 0) if token not in stops]
    branches = [
        _Branch([token], [log_prob], StopRule(config.max_entropy, config.min_log_prob))
        for token, log_prob in firsts[: config.k]
    ]
    for n_done in range(1, config.n_tokens):
        if on_progress is not None:
            on_progress("suggest", n_done, config.n_tokens)
        alive = [branch for branch in branches if branch.end is None]
        if not alive:
            break
        n_known = len(tokens)
        tokens += [branch.tokens[-1] for branch in alive]
        parents += [branch.row for branch in alive]
        tree, logit_rows = TokenTree(tuple(tokens), tuple(parents)), range(n_known, len(tokens))
        rows = yield Pass(sequence, tree, logit_rows, n_known=n_known, with_logits=False)
        stats = rows.stats
        for i, branch in enumerate(alive):
            branch.row = n_known + i
            branch.extend(stats, i, config)
    suggestions = [
        Suggestion(tuple(b.tokens), tuple(b.log_probs), b.end or "length") for b in branches
    ]
    return sorted(suggestions, key=lambda suggestion: -suggestion.score)


def _candidates(stats: RowStats, row: int) -> list[tuple[int, float]]:
    """Returns the likeliest tokens of a row, with their log-probabilities."""
    stats.check_sum(row)
    log_probs = (stats.top_logits[row] - stats.log_sum_exp[row]).tolist()
    return [(t, p) for t, p in zip(stats.top_ids[row].tolist(), log_probs, strict=True) if t >= 0]


def _choose(
    candidates: list[tuple[int, float]], tokens: Sequence[int], no_repeat: int
) -> tuple[int, float]:
    """Returns the likeliest candidate that repeats no n-gram; the likeliest if all do."""
    if no_repeat:
        seen = {tuple(tokens[i : i + no_repeat]) for i in range(len(tokens) - no_repeat + 1)}
        context = tuple(tokens[len(tokens) - no_repeat + 1 :])
        for token, log_prob in candidates:
            if (*context, token) not in seen:
                return token, log_prob
    return candidates[0]
