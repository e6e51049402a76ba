"""How many alternative completions of what kind."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgedec.models.errors import ConfigError
from edgedec.models.graph import N_TOP


@dataclass(frozen=True, kw_only=True)
class SuggestConfig:
    """How many completions of what kind.

    k: completions, at most 8, the candidates that row statistics tell.
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
        for name, least, most in (("k", 1, N_TOP), ("n_tokens", 1, None), ("no_repeat", 0, None)):
            value = getattr(self, name)
            if value < least or (most is not None and value > most):
                expected = f"at least {least}" if most is None else f"{least} to {most}"
                raise ConfigError(f"{name} of suggestions is {value}, expected {expected}")
        if math.isnan(self.max_entropy) or self.max_entropy < 0:
            raise ConfigError(f"max_entropy is {self.max_entropy}, expected at least 0 bits")
        if math.isnan(self.min_log_prob) or self.min_log_prob > 0:
            raise ConfigError(f"min_log_prob is {self.min_log_prob}, expected at most 0 nats")
