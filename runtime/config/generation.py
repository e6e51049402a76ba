"""What one request asks for."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown
from edgedec.runtime.config.checks import (
    check_count,
    check_json_fields,
    check_number,
    check_type,
    checked_counts,
    checked_texts,
    refuse_unknown,
)
from edgedec.runtime.config.sampling import SamplingConfig
from edgedec.runtime.config.speculation import SpeculationConfig
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.config.unmasking import UnmaskConfig
from edgedec.runtime.sequences.prefill import PASS_MS

MAX_LOGPROBS = 20
"""Most likeliest tokens that a request may ask for at each place."""

AUTO, EXACT, PROGRESSIVE, PREDICTED = "auto", "exact", "progressive", "predicted"
PREFILLS = (AUTO, EXACT, PROGRESSIVE, PREDICTED)

CONSTRAINTS = ("json_schema", "regex", "grammar")
"""What an output may have to follow, at most one of them."""

INTERACTIVE, BATCH = "interactive", "batch"
PRIORITIES = (INTERACTIVE, BATCH)


MAX_TRIES = 256
"""At one answer: each is a text with a KV cache of its own while it is written."""


def check_n_likeliest(name: str, value: Any) -> None:
    """Raises a ConfigError unless so many of the likeliest tokens can be reported."""
    check_count(name, value, 0, f"at most {MAX_LOGPROBS}")
    if value > MAX_LOGPROBS:
        raise ConfigError(f"{name} is {value}, expected at most {MAX_LOGPROBS}")


class SchemaMaker(Protocol):
    """What makes a schema, as Pydantic's ``TypeAdapter`` does."""

    def json_schema(self) -> Mapping[str, Any]:
        """Returns the schema."""


_BANS = ("no_repeat_ngram_size", "bad_words_ids", "min_new_tokens", "begin_suppress_tokens")
"""What forbids tokens, greedy or sampled."""


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """One request: how much, how sampled, when to stop.

    max_new_tokens: most tokens emitted.
    seed: the same seed and prompt give the same text.
    stop: a text that ends the output, or several; a stop text itself is not emitted.
    stop_token_ids: tokens that end the output besides the model's own.
    ignore_eos: the model's own stop tokens do not end the output (for measuring).
    method: how to decode: plain, auto, or drafters; the bundle's default when None. All but
        approximate verifiers give the same distribution of texts, most of them the same text.
    verifier: the rule that accepts drafted tokens; shared-gumbel, which gives the very text of
        plain decoding, when None.
    speculation: how much is drafted, within what the method does.
    switch: lets the draft model write part of the text, in place of a method.
    unmask: which tokens a model decides that fills masks in; the default when None.
    prefill: how a prompt is read, one of `PREFILLS`. exact: to its end, then the output begins.
        progressive: provisional tokens after the first layers, then the others; the text is that of
        exact. predicted: the later layers' keys and values stay predictions, which is approximate.
        auto: progressive where that pays. All but exact need KV maps (`edgedec train kv`).
    prefill_pass_ms: what a pass over part of a prompt should take at most; cancelling waits for it.
        Much less than the default takes longer in all.
    prefix_group: texts share what was computed of their beginnings with those of their own group
        only: how soon an answer comes reveals what others of the group have sent.
    priority: interactive if somebody waits for the text: its passes go before those of batches.
        batch if nobody does. None leaves it to the call: `Engine.generate_many` and
        `Engine.best_of` are batches. The text is the same.
    is_one_of_many: short texts follow one another, and the sum of their times counts: a text may
        lose more of the time that drafts saved before. The text is the same.
    prefix: text that the output begins with, in tokens of the model's choice; it is part of the
        output. For a prompt that would end in the middle of a word.
    prediction: text that the output is likely to repeat, with changes, such as the file that an
        edit is asked of. Drafts follow it; the output stays what it is without.
    logprobs: how many of the likeliest tokens are reported at each place, with their
        log-probabilities and that of the token taken; None reports nothing. Needs a
        verifier that gives the text of plain decoding.
    template_variables: what the chat template may read besides messages, JSON values by name, such
        as ``{"enable_thinking": False}``. They change the prompts that are messages.
    thought_budget: most tokens of thoughts in an answer to messages; then a thought is closed, and
        the answer follows. The closing mark does not count. None sets no limit.
    json_schema, regex, grammar: what the output has to follow, at most one of them: a JSON schema
        as a mapping or as text, a regular expression for the whole output, or a grammar in the
        dialect of Lark that llguidance reads. A Pydantic class, or a ``TypeAdapter``,
        stands for its schema. Needs the extra ``grammar``.
    """

    def __new__(cls, **fields: Any) -> Self:
        """Refuses the fields of `SamplingConfig` with the words that set them."""
        for name in fields.keys() & SamplingConfig.__dataclass_fields__.keys():
            value = fields[name]
            written = f"{name}={value if isinstance(value, int | float) else '...'}"
            raise ConfigError(
                f"{name} is a setting of sampling: write "
                f"GenerationConfig(sampling=SamplingConfig({written})), "
                f"or generate(prompt, {written})"
            )
        return super().__new__(cls)

    max_new_tokens: int = 256
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    seed: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    method: str | None = None
    verifier: str | None = None
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    switch: SwitchConfig | None = None
    unmask: UnmaskConfig | None = None
    prefill: str = AUTO
    prefill_pass_ms: float = PASS_MS
    prefix_group: str = ""
    priority: str | None = None
    is_one_of_many: bool = False
    prefix: str = ""
    prediction: str = ""
    logprobs: int | None = None
    json_schema: str | Mapping[str, Any] | type[Any] | SchemaMaker | None = None
    regex: str | None = None
    grammar: str | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    thought_budget: int | None = None

    def __post_init__(self) -> None:
        check_count("max_new_tokens", self.max_new_tokens, 1, "ask for at least one token")
        check_type("sampling", self.sampling, SamplingConfig, "a SamplingConfig")
        check_count("seed", self.seed, 0, "any whole number will do")
        stop_token_ids = checked_counts("stop_token_ids", self.stop_token_ids)
        object.__setattr__(self, "stop", checked_texts("stop", self.stop))
        object.__setattr__(self, "stop_token_ids", stop_token_ids)
        for name in ("ignore_eos", "is_one_of_many"):
            check_type(name, getattr(self, name), bool, "true or false")
        for name in ("method", "verifier"):
            if not isinstance(value := getattr(self, name), str | None):
                raise ConfigError(f"{name} is {shown(value)}, expected a name or None")
            if value is not None and self.switch is not None:
                raise ConfigError(f"{name} is {shown(value)}, but switching is a method of its own")
        check_type("speculation", self.speculation, SpeculationConfig, "a SpeculationConfig")
        if self.switch is not None:
            check_type("switch", self.switch, SwitchConfig, "a SwitchConfig or None")
        if self.unmask is not None:
            check_type("unmask", self.unmask, UnmaskConfig, "an UnmaskConfig or None")
        if not isinstance(self.prefill, str) or self.prefill not in PREFILLS:
            raise ConfigError(f"prefill is {shown(self.prefill)}, expected {', '.join(PREFILLS)}")
        check_type("prefix_group", self.prefix_group, str, "text")
        if self.priority is not None and self.priority not in PRIORITIES:
            expected = " or ".join(PRIORITIES)
            raise ConfigError(f"priority is {shown(self.priority)}, expected {expected}, or None")
        check_number("prefill_pass_ms", self.prefill_pass_ms, 0.0, 1e9, "milliseconds")
        check_json_fields("template_variables", self.template_variables)
        if self.thought_budget is not None:
            check_count("thought_budget", self.thought_budget, 0, "None is no limit")
        object.__setattr__(self, "json_schema", _schema_of(self.json_schema))
        self._check_constraint()
        self._check_logprobs()
        if self.sampling.is_by_path and (self.verifier is not None or self.switch is not None):
            raise ConfigError(
                "mirostat and xtc need the default verifier and no switching: leave those out"
            )

    @property
    def constraint(self) -> tuple[str, str] | None:
        """What the output has to follow: json_schema, regex or grammar, and its text."""
        for name in CONSTRAINTS:
            if (value := getattr(self, name)) is not None:
                return name, value if isinstance(value, str) else json.dumps(value)
        return None

    def _check_constraint(self) -> None:
        constraints = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(constraints) > 1:
            raise ConfigError(f"{' and '.join(constraints)} are given, expected at most one")
        for name in ("regex", "grammar"):
            if not isinstance(value := getattr(self, name), str | None):
                raise ConfigError(f"{name} is {shown(value)}, expected text")
        check_type("prefix", self.prefix, str, "text")
        check_type("prediction", self.prediction, str, "text")
        if not self.prediction and "rewrite" in (self.method or "").split("+"):
            raise ConfigError(
                "method rewrite needs a prediction, the text that the output is likely to repeat: "
                "set prediction, or leave the method at auto"
            )
        if self.prefix and constraints:
            raise ConfigError(
                f"prefix and {constraints[0]} are given, expected one: "
                "put the prefix into the other"
            )
        try:
            self.prefix.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"prefix is {shown(self.prefix)}, expected whole characters"
            ) from None
        schema = self.json_schema
        if not isinstance(schema, str | Mapping | None):
            raise ConfigError(f"json_schema is {shown(schema)}, expected a mapping or JSON text")
        try:
            _ = json.loads(schema) if isinstance(schema, str) else json.dumps(schema)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"json_schema is not valid JSON: {error}") from None

    def _check_logprobs(self) -> None:
        if self.logprobs is None:
            return
        check_n_likeliest("logprobs", self.logprobs)
        if self.verifier is not None or self.switch is not None:
            raise ConfigError(
                "logprobs need the default verifier and no switching: leave out verifier and switch"
            )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the config stated by ``fields``; unknown keys are a ConfigError."""
        refuse_unknown(cls, fields)
        values = dict(fields)
        if isinstance(switch := values.get("switch"), Mapping):
            values["switch"] = SwitchConfig.from_dict(switch)
        if isinstance(unmask := values.get("unmask"), Mapping):
            values["unmask"] = UnmaskConfig.from_dict(unmask)
        if isinstance(speculation := values.get("speculation"), Mapping):
            values["speculation"] = SpeculationConfig.from_dict(speculation)
        if isinstance(sampling := values.get("sampling"), Mapping):
            values["sampling"] = SamplingConfig.from_dict(sampling)
        return cls(**values)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises a ConfigError if a token id here is none of a model with ``vocab_size``."""
        named = {
            "logit_bias": self.sampling.logit_bias,
            "bad_words_ids": [token for word in self.sampling.bad_words_ids for token in word],
            "begin_suppress_tokens": self.sampling.begin_suppress_tokens,
            "stop_token_ids": self.stop_token_ids,
        }
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
            kept = (*_BANS, *(name for name in known if name.endswith("_penalty")))
            sampling = {name: value for name, value in sampling.items() if name in kept}
        elif "temperature" not in fields:
            sampling["temperature"] = 1.0
        return cls(sampling=SamplingConfig(**sampling))


def _schema_of(schema: Any) -> Any:
    """Returns the schema of a class or an adapter of Pydantic's; anything else as it is."""
    for name in ("model_json_schema", "json_schema"):
        if callable(make := getattr(schema, name, None)):
            try:
                return make()
            except Exception as error:  # whatever a class of somebody else's raises
                raise ConfigError(
                    f"json_schema is {shown(schema)}, which has no schema: {error}".split("\n")[0]
                ) from None
    return schema
