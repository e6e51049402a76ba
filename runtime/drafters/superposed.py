"""Several alternative completions at once, and the same as a drafter.

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

from edgedec.models.errors import ConfigError, SessionError
from edgedec.runtime.decoding.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafters.best_first import MAX_PROBABILITY
from edgedec.runtime.drafters.drafter import Budget, DraftContext, RoundOutcome
from edgedec.runtime.prefill import PREFILL_CHUNK, reuse_prefix
from edgedec.runtime.row_stats import N_TOP, RowStats
from edgedec.runtime.session import ModelSession, TokenTree


@dataclass(frozen=True, kw_only=True)
class SuggestConfig:
    """How many completions of what kind.

    k: completions, at most 8, the candidates that row statistics tell.
    n_tokens: length of a completion; one that draws a stop token ends before it.
    no_repeat: a completion never holds the same so many tokens twice, as far as the candidates
        allow; 0 does not care.
    """

    k: int = 3
    n_tokens: int = 8
    stop_token_ids: frozenset[int] = frozenset()
    no_repeat: int = 0

    def __post_init__(self) -> None:
        for name, least, most in (("k", 1, N_TOP), ("n_tokens", 1, None), ("no_repeat", 0, None)):
            value = getattr(self, name)
            if value < least or (most is not None and value > most):
                expected = f"at least {least}" if most is None else f"{least} to {most}"
                raise ConfigError(f"{name} of suggestions is {value}, expected {expected}")


@dataclass(frozen=True)
class Suggestion:
    """One completion.

    log_probs: of each token after those before, at temperature 1. Units: nats.
    """

    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]

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
    row: int = 0
    is_finished: bool = False

    def extend(self, token: int, log_prob: float, stops: frozenset[int]) -> None:
        """Adds a token, or ends before it if it is one of ``stops``."""
        self.is_finished = token in stops
        if not self.is_finished:
            self.tokens.append(token)
            self.log_probs.append(log_prob)


def suggest(session: ModelSession, anchor: int, config: SuggestConfig) -> list[Suggestion]:
    """Returns completions with different first tokens, the likeliest first.

    The first tokens are the likeliest but for stop tokens, fewer than k if there are no more; each
    is continued greedily. The session is left as it was.

    Args:
        anchor: The text's last token. The session has committed all before it.

    Raises:
        SessionError: The tree does not fit the context.
    """
    needed = session.n_tokens + 1 + config.k * (config.n_tokens - 1)
    if needed > session.context:
        raise SessionError(
            f"{config.k} suggestions of {config.n_tokens} tokens need {needed} positions, the "
            f"context has {session.context}: ask for fewer or shorter ones"
        )
    try:
        return _grow(session, anchor, config)
    finally:
        session.truncate(session.n_tokens)  # forgets the pass


def _grow(session: ModelSession, anchor: int, config: SuggestConfig) -> list[Suggestion]:
    stops = config.stop_token_ids
    tokens, parents = [anchor], [-1]
    stats = session.forward(TokenTree((anchor,), (-1,)), (0,), with_logits=False).stats
    firsts = [(token, p) for token, p in _candidates(stats, 0) if token not in stops]
    branches = [_Branch([token], [log_prob]) for token, log_prob in firsts[: config.k]]
    for _ in range(config.n_tokens - 1):
        alive = [branch for branch in branches if not branch.is_finished]
        if not alive:
            break
        n_known = len(tokens)
        tokens += [branch.tokens[-1] for branch in alive]
        parents += [branch.row for branch in alive]
        tree, rows = TokenTree(tuple(tokens), tuple(parents)), range(n_known, len(tokens))
        stats = session.forward(tree, rows, n_known=n_known, with_logits=False).stats
        for i, branch in enumerate(alive):
            branch.row = n_known + i
            chosen = _choose(_candidates(stats, i), branch.tokens, config.no_repeat)
            branch.extend(*chosen, stops)
    found = [Suggestion(tuple(b.tokens), tuple(b.log_probs)) for b in branches]
    return sorted(found, key=lambda suggestion: -suggestion.score)


def _candidates(stats: RowStats, row: int) -> list[tuple[int, float]]:
    """Returns the likeliest tokens of a row, with their log-probabilities."""
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


class SuggestionDrafter:
    """Proposes the completions of a draft model with the target model's tokens.

    Its trees fork at the first token only; the draft model's own drafter forks anywhere.
    """

    name = "superposed"
    is_free = False

    def __init__(self, session: ModelSession, k: int = 2) -> None:
        """Takes over ``session``, which `close` closes."""
        self._session = session
        self._k = k

    def begin(self, tokens: Sequence[int]) -> None:
        """Keeps what the text before and the prompt ``tokens`` have in common."""
        reuse_prefix(self._session, tokens)

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        """Returns a tree within ``budget``; empty where the draft model's context ends."""
        session, tokens, tree = self._session, context.tokens, DraftTree()
        k = min(self._k, budget.n_nodes)
        n_tokens = min(budget.depth, budget.n_nodes // k) if k else 0
        if n_tokens < 1 or len(tokens) + k * (n_tokens - 1) > session.context:
            return tree
        self._catch_up(tokens)
        config = SuggestConfig(k=k, n_tokens=n_tokens)
        for suggestion in suggest(session, tokens[-1], config):
            parent, value = ROOT, 1.0
            for token, probability in zip(
                suggestion.tokens, suggestion.probabilities(), strict=True
            ):
                value *= probability
                if value < budget.min_value:
                    break
                parent = tree.add(token, parent, probability, self.name)
        return tree

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        """Does nothing: the next proposal computes what was emitted."""

    def end(self, tokens: Sequence[int]) -> None:
        """Keeps the rows of ``tokens`` and no others."""
        reuse_prefix(self._session, tokens)

    def close(self) -> None:
        """Closes the draft model's session."""
        self._session.close()

    def _catch_up(self, tokens: Sequence[int]) -> None:
        """Commits all of ``tokens`` but the last."""
        session = self._session
        while (start := session.n_tokens) < len(tokens) - 1:
            chunk = tokens[start : min(start + PREFILL_CHUNK, len(tokens) - 1)]
            session.forward(TokenTree.chain(chunk), (), with_logits=False)
            session.commit(range(len(chunk)))
