"""AdaDec: where the model is unsure, look ahead along several tokens before one is chosen.

A way to better text from one model, not a faster one. Its text is its own, not plain decoding's.
Source: AdaDec (arXiv 2506.08980), whose reference implementation computes every look-ahead from
    the beginning; here the candidates grow as one tree behind the KV cache, and what the winner
    looked ahead to is kept as far as the model was sure of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edgedec.models.errors import ConfigError
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.decoding.strategy import (
    TARGET,
    DecodeState,
    Decoding,
    DecodingStrategy,
    StepResult,
)
from edgedec.runtime.decoding.switching.policy import Signal
from edgedec.runtime.drafting.draft_passes import PREFIX, DraftPasses
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import HiddenStates
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.token_tree import TokenTree

N_CANDIDATES = 3
N_AHEAD = 5
LOOK_AHEAD = "look-ahead"
"""Origin of tokens that a look-ahead chose."""


@dataclass
class _Branch:
    """A candidate and its greedy continuation.

    row: of the tree, that of the last token computed. entropies: after each computed token, which
    are all but the last. Units: bits.
    """

    tokens: list[int]
    log_probs: list[float]
    row: int = PREFIX
    entropies: list[float] = field(default_factory=list)

    @property
    def score(self) -> float:
        """Mean log-probability."""
        return sum(self.log_probs) / len(self.log_probs)

    def n_sure(self, threshold: float) -> int:
        """Returns how many tokens come before the next pause."""
        doubtful = (i for i, entropy in enumerate(self.entropies) if entropy >= threshold)
        return 1 + next(doubtful, len(self.entropies))


class AdaDec(DecodingStrategy):
    """Greedy decoding that pauses above an entropy and re-ranks the likeliest tokens."""

    is_lossless = False

    def __init__(
        self, setting: SwitchConfig, n_candidates: int = N_CANDIDATES, n_ahead: int = N_AHEAD
    ) -> None:
        """Takes the threshold of ``setting``, in bits, and how far to look.

        n_candidates: at most 8, as many as row statistics list. n_ahead: tokens after each.
        """
        assert not isinstance(setting.threshold, str), "auto must be resolved first"
        self.name = setting.policy
        self.setting = setting
        self.threshold = float(setting.threshold)
        self.n_candidates = n_candidates
        self.n_ahead = n_ahead

    def begin(self, state: DecodeState, hidden: HiddenStates) -> AdaDecDecoding:
        """Returns the part of a request.

        Raises:
            ConfigError: The request samples, or edits logits: candidates are the model's own.
        """
        if not state.sampling.is_greedy or state.is_edited:
            raise ConfigError(
                "adadec chooses by the model's own probabilities: use temperature 0, and no "
                "penalties, biases or grammars"
            )
        return AdaDecDecoding(self, state)


class AdaDecDecoding(Decoding):
    """One request, decoded with pauses."""

    def __init__(self, method: AdaDec, state: DecodeState) -> None:
        self._method = method
        self._state = state
        self._n_pauses = self._n_changed = self._n_ahead_passes = 0

    def step(self, noise: Noise) -> Passes[StepResult]:
        """Returns the next token; after a pause also those that were looked ahead to and sure."""
        state, method = self._state, self._method
        rows = state.take_rows()
        if rows is None:
            anchor = TokenTree.chain(state.tokens[-1:])
            rows = yield Pass(state.sequence, anchor, (0,), with_logits=False)
            state.sequence.commit((0,))
            state.stats.n_passes += 1
            state.stats.n_pass_tokens += 1
        likeliest = state.pick_from(rows, 0, noise)
        room = state.sequence.context - state.sequence.n_tokens
        n_ahead = min(method.n_ahead, state.n_left - 1, room // method.n_candidates)
        if Signal.of(rows.stats, 0).entropy < method.threshold or n_ahead < 1:
            return StepResult((likeliest,), (TARGET,))
        winner = yield from self._look_ahead(rows, n_ahead)
        tokens = tuple(winner.tokens)
        self._n_pauses += 1
        self._n_changed += tokens[0] != likeliest
        state.stats.n_pass_tokens += len(tokens) - 1
        return StepResult(tokens, (LOOK_AHEAD,) * len(tokens))

    def end(self) -> None:
        sequence = self._state.sequence
        sequence.rewind(min(sequence.n_tokens, len(self._state.tokens)))

    def summary(self) -> dict[str, Any]:
        """Returns what happened in the latest output, JSON-ready.

        n_pauses: steps that looked ahead. n_changed: those whose token was not the likeliest.
        n_ahead_passes: passes for looking ahead.
        """
        return {
            "setting": self._method.setting.to_dict(),
            "n_pauses": self._n_pauses,
            "n_changed": self._n_changed,
            "n_ahead_passes": self._n_ahead_passes,
        }

    def explain(self) -> list[str]:
        """Returns what happened in the latest output, in words."""
        return [
            f"{self._method.setting}: looked ahead {self._n_pauses} times in "
            f"{self._n_ahead_passes} passes and chose another token than the likeliest "
            f"{self._n_changed} times"
        ]

    def _look_ahead(self, rows: Rows, n_ahead: int) -> Passes[_Branch]:
        """Returns the best of the likeliest tokens, by what the model makes of it.

        What of its tokens the model was sure of is in the KV cache then, the last one left out.
        """
        state, method = self._state, self._method
        passes = DraftPasses(state.sequence)
        branches = [
            _Branch([token], [_log_prob(rows, 0, i)])
            for i, token in enumerate(rows.stats.top_ids[0, : method.n_candidates].tolist())
            if token >= 0
        ]
        for _ in range(n_ahead):
            growing = [b for b in branches if b.tokens[-1] not in state.stop_token_ids]
            if growing:
                yield from _grow(passes, growing)
                self._n_ahead_passes += 1
                state.stats.n_passes += 1
        winner = max(branches, key=lambda branch: branch.score)
        del winner.tokens[winner.n_sure(method.threshold) :]
        passes.align([*state.tokens, *winner.tokens[:-1]])
        return winner


def _grow(passes: DraftPasses, branches: Sequence[_Branch]) -> Passes[None]:
    """Computes the last token of each branch and appends the likeliest after it."""
    first = passes.n_rows
    tokens = [branch.tokens[-1] for branch in branches]
    rows = yield from passes.grow(tokens, [branch.row for branch in branches], with_logits=False)
    for i, branch in enumerate(branches):
        branch.row = first + i
        branch.entropies.append(Signal.of(rows.stats, i).entropy)
        branch.tokens.append(int(rows.stats.argmax[i]))
        branch.log_probs.append(_log_prob(rows, i, 0))


def _log_prob(rows: Rows, index: int, rank: int) -> float:
    stats = rows.stats
    return float(stats.top_logits[index, rank]) - float(stats.log_sum_exp[index])


def make(setting: SwitchConfig) -> AdaDec:
    """Returns the method of ``setting``, whose threshold is a number."""
    return AdaDec(setting)
