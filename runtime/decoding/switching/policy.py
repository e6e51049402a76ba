"""Switch policies: what a model says of its own doubt goes in, the choice of a model comes out.

Policies hold no model. They see every prediction in the order it was made, those that are
taken back later included.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, Self

from edgedec.runtime.config.switching import BILD, MARGIN, SwitchConfig
from edgedec.runtime.sequences.row_stats import RowStats


class ModelRole(StrEnum):
    """One of the two models; the value is the origin its tokens are tagged with."""

    DRAFT = "draft"
    TARGET = "target"

    @property
    def other(self) -> ModelRole:
        """The other model of the pair."""
        return ModelRole.TARGET if self is ModelRole.DRAFT else ModelRole.DRAFT


@dataclass(frozen=True, slots=True)
class Signal:
    """How sure a model is of its next token: of the raw logits of all tokens that a mask allows.

    entropy: Units: bits. margin: p1 - p2 of the two likeliest tokens. top_prob: p1.
    """

    entropy: float
    margin: float
    top_prob: float

    @classmethod
    def of(cls, stats: RowStats, index: int) -> Self:
        """Returns the signal of one row."""
        first, second = stats.top_logits[index, :2].tolist()
        total = float(stats.log_sum_exp[index])
        top_prob = math.exp(min(first - total, 0.0))
        return cls(
            entropy=float(stats.entropy[index]) / math.log(2),
            margin=top_prob - math.exp(min(second - total, 0.0)),
            top_prob=top_prob,
        )


class SwitchPolicy(Protocol):
    """Decides which model is next. One output at a time."""

    @property
    def discards(self) -> bool:
        """The draft model's prediction that leads to the target model is dropped.

        The target model is asked in its place; otherwise it is the draft's last token.
        """

    @property
    def level(self) -> float:
        """The doubt that the latest choice was made by."""

    def begin(self) -> ModelRole:
        """A new output starts; returns the model to give its first token."""

    def observe(self, model: ModelRole, signal: Signal) -> ModelRole:
        """Takes in what ``model`` said of the next token; returns the model to go on with."""


class RollingPolicy:
    """Entropy-adaptive decoding: the target model while the rolling doubt is above a threshold.

    The doubt is the entropy in bits or, ``by_margin``, 1 - margin. Until the window is full the
    mean is over what there is, and nothing is switched before the shorter of window and dwell.

    Source: Entropy Adaptive Decoding (arXiv 2502.06833); hysteresis, margin and the choice to
    reset the window are additions.
    """

    discards = False

    def __init__(self, config: SwitchConfig, by_margin: bool = False) -> None:
        assert not isinstance(config.threshold, str), "auto must be resolved first"
        self._threshold = float(config.threshold)
        self._config = config
        self._by_margin = by_margin
        self._window: deque[float] = deque(maxlen=config.window)
        self._active = ModelRole.DRAFT
        self._dwell = 0
        self._needed = 0

    @property
    def level(self) -> float:
        """Mean over the window."""
        return math.fsum(self._window) / len(self._window) if self._window else 0.0

    def begin(self) -> ModelRole:
        self._window.clear()
        self._active = ModelRole.TARGET if self._threshold < 0 else ModelRole.DRAFT
        self._dwell = 0
        self._needed = min(self._config.window, self._config.dwell)
        return self._active

    def observe(self, model: ModelRole, signal: Signal) -> ModelRole:
        if self._dwell == 0 and self._config.reset_window:
            self._window.clear()
        self._window.append(1 - signal.margin if self._by_margin else signal.entropy)
        self._dwell += 1
        if self._dwell >= self._needed and self._next_model() is not self._active:
            self._active = self._active.other
            self._dwell = 0
            self._needed = self._config.dwell
        return self._active

    def _next_model(self) -> ModelRole:
        is_target = self._active is ModelRole.TARGET
        threshold = self._threshold * (self._config.hysteresis if is_target else 1.0)
        return ModelRole.TARGET if self.level > threshold else ModelRole.DRAFT


class BigLittlePolicy:
    """Big Little Decoder's fallback: the target gives each token the draft model is unsure of.

    Its rollback is `repair`, which looks at the target model's rows.

    Source: Speculative Decoding with Big Little Decoder (arXiv 2302.07863), section 3.2.
    """

    discards = True

    def __init__(self, fallback: float) -> None:
        self._fallback = fallback
        self.level = 0.0

    def begin(self) -> ModelRole:
        self.level = 0.0
        return ModelRole.DRAFT

    def observe(self, model: ModelRole, signal: Signal) -> ModelRole:
        self.level = 1 - signal.top_prob
        is_unsure = model is ModelRole.DRAFT and signal.top_prob < self._fallback
        return ModelRole.TARGET if is_unsure else ModelRole.DRAFT


def make_policy(config: SwitchConfig) -> SwitchPolicy:
    """Returns the policy of ``config``, whose threshold is a number."""
    if config.policy == BILD:
        return BigLittlePolicy(config.fallback)
    return RollingPolicy(config, by_margin=config.policy == MARGIN)
