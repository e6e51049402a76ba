"""How many alternative completions of what kind."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown
from edgedec.models.graph import N_TOP
from edgedec.runtime.config.checks import check_count, checked_counts, is_number


@dataclass(frozen=True, kw_only=True)
class SuggestConfig:
    """How many completions of what kind.

    k: completions, at most 8, the candidates that row statistics name.
    n_tokens: length of a completion; one that draws a stop token ends before it.
    stop_token_ids: tokens that end a completion.
    no_repeat: a completion never holds the same so many tokens twice, as far as the candidates
        allow; 0 does not care.
    max_entropy: a completion ends before a token whose distribution has more. Units: bits.
    min_log_prob: a completion ends where the likeliest token's log-probability, in the mean of
        the latest 4 tokens, is less. Units: nats.
    """

    k: int = 3
    n_tokens: int = 8
    stop_token_ids: frozenset[int] = frozenset()
    no_repeat: int = 0
    max_entropy: float = math.inf
    min_log_prob: float = -math.inf

    def __post_init__(self) -> None:
        check_count("k", self.k, 1, f"{N_TOP} are the most")
        if self.k > N_TOP:
            raise ConfigError(f"k is {self.k}, expected at most {N_TOP} suggestions")
        check_count("n_tokens", self.n_tokens, 1, "ask for at least one token")
        check_count("no_repeat", self.no_repeat, 0, "0 lets a completion repeat itself")
        stops = frozenset(checked_counts("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "stop_token_ids", stops)
        if not is_number(self.max_entropy) or not self.max_entropy >= 0:
            raise ConfigError(f"max_entropy is {shown(self.max_entropy)}, expected 0 bits or more")
        if not is_number(self.min_log_prob) or not self.min_log_prob <= 0:
            raise ConfigError(
                f"min_log_prob is {shown(self.min_log_prob)}, expected 0 nats or less"
            )
