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
    checked_counts,
    checked_texts,
    is_number,
    refuse_unknown,
)

GREEDY_BELOW = 1e-5
"""Temperatures under this take the likeliest token."""

_MAX = 1e9  # of a temperature or a penalty: sums of them stay within a float64


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How a logits row becomes a token. The defaults are greedy.

    The steps run in this order: what a grammar or the last four settings forbid, logit_bias,
    repetition_penalty, frequency_penalty and presence_penalty, dry, momentum, temperature,
    top_n_sigma, top_k, typical_p, top_p, min_p, xtc. Each truncation renormalises what
    the one before it left. Mirostat takes the place of all of them.

    temperature: below 1e-5 is greedy: the likeliest token, the lowest id of equals.
    temperature_last: the temperature comes after xtc, so that truncations see the probabilities
        at temperature 1. This is llama.cpp's order.
    top_k: tokens kept; 0 keeps all. Of equals at the boundary the lowest ids stay.
    top_p: keeps the likeliest tokens up to this mass, including the one that reaches it.
    min_p: keeps tokens at least this likely relative to the likeliest.
    repetition_penalty: divides positive and multiplies negative logits of every token in the
        prompt or the output.
    presence_penalty: subtracted from the logits of tokens in the output (not of the prompt's).
    frequency_penalty: subtracted once per occurrence in the output (the prompt does not count).
    logit_bias: token id -> added to its logit; -inf forbids it.
    typical_p: keeps tokens whose surprise is nearest to the entropy, up to this mass.
    top_n_sigma: keeps logits within so many standard deviations of the largest; 0 keeps all.
    xtc_probability: how often, where two tokens or more have xtc_threshold or more, all of these
        but the least likely are left out.
    dry_multiplier: above 0, a token that would go on repeating the text loses
        ``dry_multiplier * dry_base ** (n - dry_allowed_length)`` of its logit, where n tokens, at
        least dry_allowed_length, are repeated before it. Tokens with one of dry_sequence_breakers
        in their text end repetitions.
    mirostat: 1 or 2, the version that keeps the average surprise near mirostat_tau bits, and
        learns at the rate mirostat_eta; 0 is off.
    momentum: greedy decoding subtracts this, times the length of the repetition that a likely
        token would make (1 to 5), from the token's probability; 0 is off.
    no_repeat_ngram_size: no run of so many tokens occurs twice in prompt and output; 0 is off.
    bad_words_ids: runs of tokens that the output never completes.
    min_new_tokens: no stop token comes before so many tokens.
    begin_suppress_tokens: tokens that do not begin an output.

    Source: DRY and XTC (p-e-w, text-generation-webui, 2024); momentum decoding (Lan et al., 2022).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    momentum: float = 0.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    min_new_tokens: int = 0
    begin_suppress_tokens: tuple[int, ...] = ()
    temperature_last: bool = False

    def __post_init__(self) -> None:
        check_type("temperature_last", self.temperature_last, bool, "true or false")
        check_number("temperature", self.temperature, 0.0, _MAX, "0 is greedy")
        check_count("top_k", self.top_k, 0, "0 keeps every token")
        check_number("top_p", self.top_p, 0.0, 1.0, "1 keeps every token")
        if self.top_p == 0:
            raise ConfigError("top_p is 0, expected above 0; for greedy use temperature 0")
        check_number("min_p", self.min_p, 0.0, 1.0, "0 keeps every token")
        check_number("repetition_penalty", self.repetition_penalty, 0.0, _MAX, "1 is none")
        if self.repetition_penalty == 0:
            raise ConfigError("repetition_penalty is 0, expected above 0; 1 is none")
        for name in ("presence_penalty", "frequency_penalty"):
            check_number(name, getattr(self, name), -_MAX, _MAX, "0 is none")
        self._check_newer()
        self._check_bans()
        check_type("logit_bias", self.logit_bias, Mapping, "a mapping of token ids to numbers")
        for token, bias in self.logit_bias.items():
            check_count("a token of logit_bias", token, 0, "token ids are meant")
            if not is_number(bias) or math.isnan(bias) or bias == math.inf:
                raise ConfigError(
                    f"logit_bias of token {token} is {shown(bias)}, expected a number or -inf"
                )

    def _check_bans(self) -> None:
        check_count("no_repeat_ngram_size", self.no_repeat_ngram_size, 0, "0 is off")
        check_count("min_new_tokens", self.min_new_tokens, 0, "0 is off")
        words = self.bad_words_ids
        if not isinstance(words, list | tuple) or not all(words):
            raise ConfigError(
                f"bad_words_ids is {shown(words)}, expected lists of token ids, none of them empty"
            )
        words = tuple(checked_counts("a word of bad_words_ids", word) for word in words)
        object.__setattr__(self, "bad_words_ids", words)
        first = checked_counts("begin_suppress_tokens", self.begin_suppress_tokens)
        object.__setattr__(self, "begin_suppress_tokens", first)

    def _check_newer(self) -> None:
        check_number("typical_p", self.typical_p, 0.0, 1.0, "1 keeps every token")
        if self.typical_p == 0:
            raise ConfigError("typical_p is 0, expected above 0; 1 keeps every token")
        check_number("top_n_sigma", self.top_n_sigma, 0.0, _MAX, "0 keeps every token")
        check_number("xtc_probability", self.xtc_probability, 0.0, 1.0, "0 is off")
        check_number("xtc_threshold", self.xtc_threshold, 0.0, 1.0, "above 0.5 nothing is left out")
        check_number("dry_multiplier", self.dry_multiplier, 0.0, _MAX, "0 is off")
        check_number("dry_base", self.dry_base, 1.0, 100.0, "1.75 is usual")
        check_count("dry_allowed_length", self.dry_allowed_length, 1, "2 is usual")
        breakers = checked_texts("dry_sequence_breakers", self.dry_sequence_breakers)
        object.__setattr__(self, "dry_sequence_breakers", breakers)
        check_count("mirostat", self.mirostat, 0, "0 is off, 1 and 2 are the versions")
        if self.mirostat > 2:
            raise ConfigError(f"mirostat is {self.mirostat}, expected 0, 1 or 2")
        check_number("mirostat_tau", self.mirostat_tau, 0.0, 100.0, "bits per token")
        check_number("mirostat_eta", self.mirostat_eta, 0.0, 1.0, "0.1 is usual")
        check_number("momentum", self.momentum, 0.0, _MAX, "0 is off")
        if self.mirostat and self.is_greedy:
            raise ConfigError(
                f"mirostat is {self.mirostat} and temperature {self.temperature:g}, which is "
                "greedy: ask for a temperature such as 1"
            )
        if self.momentum and not self.is_greedy:
            raise ConfigError(
                f"momentum is {self.momentum:g} and temperature {self.temperature:g}: momentum is "
                "for greedy decoding, so ask for temperature 0"
            )

    @property
    def is_greedy(self) -> bool:
        """The likeliest token is taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def is_truncating(self) -> bool:
        """Unlikely tokens are left out."""
        return (
            self.top_k > 0
            or self.top_p < 1.0
            or self.min_p > 0.0
            or self.typical_p < 1.0
            or self.top_n_sigma > 0.0
            or self.xtc_probability > 0.0
        )

    @property
    def is_by_path(self) -> bool:
        """A draw depends on more than the row and the penalties: on a coin, or on earlier draws."""
        return self.mirostat > 0 or self.xtc_probability > 0.0

    @property
    def is_ordered(self) -> bool:
        """The order of the tokens so far matters, not only which there are."""
        return self.dry_multiplier > 0.0 or self.momentum > 0.0

    @property
    def is_banning(self) -> bool:
        """Some tokens are forbidden at some places."""
        return bool(
            self.no_repeat_ngram_size
            or self.bad_words_ids
            or self.min_new_tokens
            or self.begin_suppress_tokens
        )

    @property
    def is_editing(self) -> bool:
        """Logits change before a token is chosen."""
        return bool(self.logit_bias) or self.has_penalties or self.is_ordered

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
