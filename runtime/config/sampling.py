"""How a logits row becomes a token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown
from edgedec.runtime.config.checks import (
    check_count,
    check_number,
    check_type,
    is_number,
    refuse_unknown,
)

GREEDY_BELOW = 1e-5
"""Temperatures under this take the likeliest token."""

_MOST = 1e9  # of a temperature or a penalty: sums of them stay within a float64


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How a logits row becomes a token. The defaults are greedy.

    The steps run in this order: the mask of a grammar, logit_bias, repetition_penalty,
    frequency_penalty and presence_penalty, temperature, top_k, top_p, min_p. Each truncation
    renormalises what the one before it left.

    temperature: below 1e-5 is greedy: the likeliest token, the lowest id of equals.
    top_k: tokens kept; 0 keeps all. Of equals at the boundary the lowest ids stay.
    top_p: keeps the likeliest tokens up to this mass, including the one that reaches it.
    min_p: keeps tokens at least this likely relative to the likeliest.
    repetition_penalty: divides positive and multiplies negative logits of every token in the
        prompt or the output.
    presence_penalty: subtracted from the logits of tokens in the output (not of the prompt's).
    frequency_penalty: subtracted once per occurrence in the output (the prompt does not count).
    logit_bias: token id -> added to its logit; -inf forbids it.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, 0.0, _MOST, "0 is greedy")
        check_count("top_k", self.top_k, 0, "0 keeps every token")
        check_number("top_p", self.top_p, 0.0, 1.0, "1 keeps every token")
        if self.top_p == 0:
            raise ConfigError("top_p is 0, expected above 0; for greedy use temperature 0")
        check_number("min_p", self.min_p, 0.0, 1.0, "0 keeps every token")
        check_number("repetition_penalty", self.repetition_penalty, 0.0, _MOST, "1 is none")
        if self.repetition_penalty == 0:
            raise ConfigError("repetition_penalty is 0, expected above 0; 1 is none")
        for name in ("presence_penalty", "frequency_penalty"):
            check_number(name, getattr(self, name), -_MOST, _MOST, "0 is none")
        check_type("logit_bias", self.logit_bias, Mapping, "a mapping of token ids to numbers")
        for token, bias in self.logit_bias.items():
            check_count("a token of logit_bias", token, 0, "token ids are meant")
            if not is_number(bias) or math.isnan(bias) or bias == math.inf:
                raise ConfigError(
                    f"logit_bias of token {token} is {shown(bias)}, expected a number or -inf"
                )

    @property
    def is_greedy(self) -> bool:
        """The likeliest token is taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def is_truncating(self) -> bool:
        """Unlikely tokens are left out."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def has_penalties(self) -> bool:
        """Tokens of the text count less, or more."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the config stated by ``fields``; unknown keys are a ConfigError."""
        refuse_unknown(cls, fields)
        values = dict(fields)
        if isinstance(bias := values.get("logit_bias"), Mapping):
            values["logit_bias"] = {_token_key(key): value for key, value in bias.items()}
        return cls(**values)


def _token_key(key: Any) -> Any:
    """JSON objects have text keys; a token id in one is meant as a number."""
    return int(key) if isinstance(key, str) and key.isdecimal() else key
