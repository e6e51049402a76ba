"""What a request may ask for, validated before any model runs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from edgedec.models.errors import ConfigError
from edgedec.runtime.row_stats import N_TOP
from edgedec.runtime.switching.config import SwitchConfig

GREEDY_BELOW = 1e-5
"""Temperatures under this take the likeliest token."""

MAX_DRAFT_LEN = 63
"""Most tokens that a round may be told to draft."""


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
        _check_number("temperature", self.temperature, 0.0, math.inf, "0 is greedy")
        _check_count("top_k", self.top_k, 0, "0 keeps every token")
        _check_number("top_p", self.top_p, 0.0, 1.0, "1 keeps every token")
        if self.top_p == 0:
            raise ConfigError("top_p is 0, expected above 0; for greedy use temperature 0")
        _check_number("min_p", self.min_p, 0.0, 1.0, "0 keeps every token")
        _check_number("repetition_penalty", self.repetition_penalty, 0.0, math.inf, "1 is none")
        if self.repetition_penalty == 0:
            raise ConfigError("repetition_penalty is 0, expected above 0; 1 is none")
        for name in ("presence_penalty", "frequency_penalty"):
            _check_number(name, getattr(self, name), -math.inf, math.inf, "0 is none")
        for token, bias in self.logit_bias.items():
            _check_count("a token of logit_bias", token, 0, "token ids are meant")
            if not _is_number(bias) or math.isnan(bias) or bias == math.inf:
                raise ConfigError(
                    f"logit_bias of token {token} is {bias!r}, expected a number or -inf"
                )

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def is_truncating(self) -> bool:
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def has_penalties(self) -> bool:
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the config stated by ``fields``; unknown keys are a ConfigError."""
        _refuse_unknown(cls, fields)
        values = dict(fields)
        if isinstance(bias := values.get("logit_bias"), Mapping):
            values["logit_bias"] = {_token_key(key): value for key, value in bias.items()}
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class SpeculationConfig:
    """How much a round of a drafting method may draft. None: as the method decides.

    draft_len: most tokens in all, at most 63; ``auto`` drafts no more than 15, whatever it says.
    depth: most of them one after the other.
    """

    draft_len: int | None = None
    depth: int | None = None

    def __post_init__(self) -> None:
        for name in ("draft_len", "depth"):
            value = getattr(self, name)
            if value is None:
                continue
            _check_count(name, value, 1, "method plain drafts nothing")
            if value > MAX_DRAFT_LEN:
                raise ConfigError(
                    f"{name} is {value}, expected at most {MAX_DRAFT_LEN}: passes over more rows "
                    "take longer than drafts save"
                )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the config stated by ``fields``; unknown keys are a ConfigError."""
        _refuse_unknown(cls, fields)
        return cls(**fields)

    def check_context(self, context: int) -> None:
        """Raises a ConfigError if a round may draft more than ``context`` has room for."""
        for name in ("draft_len", "depth"):
            value = getattr(self, name)
            if value is not None and value >= context:
                raise ConfigError(
                    f"{name} is {value}, expected less than {context}, the positions of the "
                    "context: draft less, or load with a larger context"
                )


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """One request: how much, how sampled, when to stop.

    max_new_tokens: most tokens emitted.
    seed: the same seed and prompt give the same text.
    stop: texts that end the output; a stop text itself is not emitted.
    stop_token_ids: tokens that end the output besides the model's own.
    ignore_eos: the model's own stop tokens do not end the output (for measuring).
    method: how to decode: plain, auto, or drafters; the bundle's default when None. All but
        approximate verifiers give the same law of texts, most of them the same text.
    verifier: the rule that accepts drafted tokens; shared-gumbel, which gives the very text of
        plain decoding, when None.
    speculation: how much is drafted, within what the method does.
    switch: lets the draft model write part of the text, in place of a method.
    json_schema, regex, grammar: what the output has to follow, at most one of them: a JSON schema
        as a mapping or as text, a regular expression for the whole output, or a grammar in the
        dialect of Lark that llguidance reads. Needs the extra ``grammar``.
    """

    max_new_tokens: int = 256
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    method: str | None = None
    verifier: str | None = None
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    switch: SwitchConfig | None = None
    json_schema: str | Mapping[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        _check_count("max_new_tokens", self.max_new_tokens, 1, "ask for at least one token")
        if not isinstance(self.sampling, SamplingConfig):
            raise ConfigError(f"sampling is {self.sampling!r}, expected a SamplingConfig")
        _check_count("seed", self.seed, 0, "any whole number will do")
        if isinstance(self.stop, str):
            raise ConfigError(f"stop is the text {self.stop!r}, expected several: ({self.stop!r},)")
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise ConfigError(f"a stop text is {text!r}, expected a non-empty string")
        for token in self.stop_token_ids:
            _check_count("a stop token id", token, 0, "token ids are meant")
        if not isinstance(self.ignore_eos, bool):
            raise ConfigError(f"ignore_eos is {self.ignore_eos!r}, expected true or false")
        for name in ("method", "verifier"):
            if not isinstance(value := getattr(self, name), str | None):
                raise ConfigError(f"{name} is {value!r}, expected a name or None")
            if value is not None and self.switch is not None:
                raise ConfigError(f"{name} is {value!r}, but switching is a method of its own")
        if not isinstance(self.speculation, SpeculationConfig):
            raise ConfigError(f"speculation is {self.speculation!r}, expected a SpeculationConfig")
        if not isinstance(self.switch, SwitchConfig | None):
            raise ConfigError(f"switch is {self.switch!r}, expected a SwitchConfig or None")
        self._check_constraint()

    @property
    def constraint(self) -> tuple[str, str] | None:
        """What the output has to follow: json_schema, regex or grammar, and its text."""
        for name in ("json_schema", "regex", "grammar"):
            if (value := getattr(self, name)) is not None:
                return name, value if isinstance(value, str) else json.dumps(value)
        return None

    def _check_constraint(self) -> None:
        given = [n for n in ("json_schema", "regex", "grammar") if getattr(self, n) is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} are given, expected at most one")
        for name in ("regex", "grammar"):
            if not isinstance(value := getattr(self, name), str | None):
                raise ConfigError(f"{name} is {value!r}, expected text")
        schema = self.json_schema
        if not isinstance(schema, str | Mapping | None):
            raise ConfigError(f"json_schema is {schema!r}, expected a mapping or JSON text")
        try:
            _ = json.loads(schema) if isinstance(schema, str) else json.dumps(schema)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"json_schema is no JSON: {error}") from None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the config stated by ``fields``; unknown keys are a ConfigError."""
        _refuse_unknown(cls, fields)
        values = dict(fields)
        if isinstance(switch := values.get("switch"), Mapping):
            values["switch"] = SwitchConfig.from_dict(switch)
        if isinstance(speculation := values.get("speculation"), Mapping):
            values["speculation"] = SpeculationConfig.from_dict(speculation)
        if isinstance(sampling := values.get("sampling"), Mapping):
            values["sampling"] = SamplingConfig.from_dict(sampling)
        return cls(**values)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises a ConfigError if a token id here is none of a model with ``vocab_size``."""
        named = {"logit_bias": self.sampling.logit_bias, "stop_token_ids": self.stop_token_ids}
        for name, tokens in named.items():
            if (largest := max(tokens, default=0)) >= vocab_size:
                raise ConfigError(
                    f"{name} names token {largest}, expected 0 to {vocab_size - 1}, the ids of "
                    "this model's vocabulary"
                )

    @classmethod
    def from_bundle(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the request a bundle's ``generation_config.json`` recommends.

        That file keeps the names of Hugging Face, whose other keys are none of our business.
        Sampling is recommended only where ``do_sample`` is true.
        """
        known = {f.name for f in dataclasses.fields(SamplingConfig)} - {"logit_bias"}
        sampling = {name: value for name, value in fields.items() if name in known and value}
        if fields.get("do_sample") is not True:
            sampling = {k: v for k, v in sampling.items() if k.endswith("_penalty")}
        elif "temperature" not in fields:
            sampling["temperature"] = 1.0
        return cls(sampling=SamplingConfig(**sampling))


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


def _refuse_unknown(cls: type[Any], fields: Mapping[str, Any]) -> None:
    known = sorted(f.name for f in dataclasses.fields(cls))
    if unknown := sorted(set(fields) - set(known)):
        raise ConfigError(f"unknown {cls.__name__} key {unknown[0]!r}; known: {', '.join(known)}")


def _token_key(key: Any) -> Any:
    """JSON objects have text keys; a token id in one is meant as a number."""
    return int(key) if isinstance(key, str) and key.isdecimal() else key


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_number(name: str, value: Any, low: float, high: float, hint: str) -> None:
    inside = _is_number(value) and math.isfinite(value) and low <= value <= high
    if not inside:
        if low == -math.inf:
            expected = "a finite number"
        elif high == math.inf:
            expected = f"a finite number of at least {low:g}"
        else:
            expected = f"a number from {low:g} to {high:g}"
        raise ConfigError(f"{name} is {value!r}, expected {expected}; {hint}")


def _check_count(name: str, value: Any, low: int, hint: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ConfigError(f"{name} is {value!r}, expected a whole number of at least {low}; {hint}")
