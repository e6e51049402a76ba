"""What the bodies of several interfaces share."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)

from edgedec.apps.serve.core import ServeError, TextPrompt, invalid
from edgedec.apps.serve.sampler_chain import SamplerChain
from edgedec.runtime.config.generation import MAX_LOGPROBS
from edgedec.runtime.sampling.gbnf import lark_grammar

logger = logging.getLogger(__name__)

MAX_CHOICES = 16
"""Most answers to one request."""

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]

MAX_PROMPTS = 64
"""Most prompts of one request."""

MAX_STOPS = 64
"""Most texts that end an answer: each is looked for behind every token."""

TextPrompts = str | list[str] | list[int] | list[list[int]]
"""One prompt or several, each text or token ids."""

_MAX_DIGITS = 10  # of a token id
_LOGGED: set[tuple[type, str]] = set()
_MAX_LOGGED = 256
_MAX_TOP_K = 2**31

_ANY_JSON = TypeAdapter(Any)

B = TypeVar("B", bound="Body")


def _whole(value: Any) -> Any:
    """Returns 2.0 as 2: JSON has one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_WHOLE = BeforeValidator(_whole)

Whole = Annotated[int, _WHOLE]
"""A whole number, also if a client writes it with a decimal point."""

Natural = Annotated[int, Field(ge=0), _WHOLE]
Positive = Annotated[int, Field(ge=1), _WHOLE]
MaxTokens = Annotated[int, Field(ge=-1), _WHOLE]
NumChoices = Annotated[int, Field(ge=1, le=MAX_CHOICES), _WHOLE]
NumLikeliest = Annotated[int, Field(ge=0, le=MAX_LOGPROBS), _WHOLE]

Text = Annotated[
    str,
    BeforeValidator(lambda value: "" if value is None else value),
    WithJsonSchema({"type": ["string", "null"]}),
]
"""A text; null, as in what clients keep of earlier turns, is an empty one."""


@dataclass(frozen=True)
class Refusal:
    """Why a field is refused, unless it has one of the values that ask for nothing."""

    reason: str
    unless: tuple[Any, ...] = ()


Others = Mapping[str, Refusal | None]
"""Fields that clients send and no answer depends on: None for those that are harmless."""


def harmless(names: str) -> Others:
    """Returns rows of fields that may have any value: they do not change what an answer means."""
    return dict.fromkeys(names.split())


def refused(names: str, reason: str, *unless: Any) -> Others:
    """Returns rows of fields that are refused unless they are empty, 0 or one of ``unless``."""
    return dict.fromkeys(names.split(), Refusal(reason, unless))


class Body(BaseModel):
    """JSON that a client sends; types are not guessed.

    others: what is known of fields that are not used. Those that are not known, either, are named
    in the log.
    """

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, allow_inf_nan=False)
    others: ClassVar[Others] = {}


class Knobs(Body):
    """edgedec's own fields, the same wherever answers are asked for."""

    method: str | None = None
    verifier: str | None = None
    prefill: str | None = None
    draft_len: Whole | None = None
    draft_depth: Whole | None = None
    priority: str | None = None
    switch: dict[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None

    def knob_settings(self) -> dict[str, Any]:
        """Returns the settings of a request that these fields state."""
        names = ("method", "verifier", "prefill", "priority", "switch", "regex", "grammar")
        knobs = stated_fields(self, {name: name for name in names})
        for name in ("regex", "grammar"):  # an empty one is how clients of llama-server have none
            if knobs.get(name) == "":
                del knobs[name]
        if "grammar" in knobs:
            knobs["grammar"] = lark_grammar(knobs["grammar"])
        speculation = stated_fields(self, {"draft_len": "draft_len", "draft_depth": "depth"})
        return {**knobs, "speculation": speculation} if speculation else knobs


class Sampling(Knobs):
    """How answers are sampled, in the field's usual names.

    random_seeds: seeds that mean a random one. drops_empty_stops: as llama.cpp does.
    may_infill: as for `SamplerChain`.
    logit_bias: by token id, or pairs.
    """

    random_seeds: ClassVar[tuple[int, ...]] = (-1,)
    drops_empty_stops: ClassVar[bool] = False
    may_infill: ClassVar[bool] = False

    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    min_p: float | None = None
    seed: Whole | None = None
    stop: str | list[str] | None = Field(default=None)
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    logit_bias: dict[str, float] | list[tuple[Any, float | bool]] | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: Whole | None = None
    dry_sequence_breakers: list[str] | None = None
    mirostat: Whole | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    momentum: float | None = None
    no_repeat_ngram_size: Whole | None = None
    bad_words_ids: list[list[int]] | None = None
    min_new_tokens: Whole | None = None
    min_tokens: Whole | None = None
    begin_suppress_tokens: list[int] | None = None
    samplers: str | list[str] | None = None
    repeat_last_n: Whole | None = None
    dry_penalty_last_n: Whole | None = None
    penalize_nl: bool | None = None
    penalize_newline: bool | None = None
    temperature_last: bool | None = None

    def settings(self) -> dict[str, Any]:
        """Returns the settings of a request that the fields state.

        Raises:
            ServeError: A key of ``logit_bias`` is no token id.
        """
        names = (
            "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
            "repetition_penalty", "typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold",
            "dry_multiplier", "dry_base", "dry_allowed_length", "dry_sequence_breakers", "mirostat",
            "mirostat_tau", "mirostat_eta", "momentum", "no_repeat_ngram_size", "bad_words_ids",
            "min_new_tokens", "begin_suppress_tokens", "temperature_last",
        )  # fmt: skip
        same = {name: name for name in names}
        sampling = stated_fields(
            self,
            {"repeat_penalty": "repetition_penalty", "min_tokens": "min_new_tokens", **same},
        )
        if sampling.get("top_n_sigma", 0.0) < 0:  # how clients of llama-server turn it off
            sampling["top_n_sigma"] = 0.0
        if -_MAX_TOP_K <= sampling.get("top_k", 0) < 0:  # all tokens, as in llama.cpp and vLLM
            sampling["top_k"] = 0
        if sampling.get("top_p") == 0:  # the likeliest token alone, as at OpenAI
            sampling.update(top_p=1.0, top_k=1)
        if self.logit_bias:
            bias = self.logit_bias
            pairs = bias.items() if isinstance(bias, dict) else bias
            sampling["logit_bias"] = dict(map(_bias, pairs))
        settings = self.knob_settings()
        if sampling:
            settings["sampling"] = sampling
        if self.seed is not None and self.seed not in self.random_seeds:
            settings["seed"] = self.seed % 2**63
        if stops := [self.stop] if isinstance(self.stop, str) else self.stop:
            kept = [stop for stop in stops if stop] if self.drops_empty_stops else stops
            settings["stop"] = checked_stops(kept)
        chain = self._chain()
        if chain != SamplerChain(may_infill=self.may_infill):
            settings["chain"] = chain
        return settings

    def _chain(self) -> SamplerChain:
        counts_line_ends = self.penalize_newline if self.penalize_nl is None else self.penalize_nl
        return SamplerChain(
            self.samplers,
            self.repeat_last_n,
            self.dry_penalty_last_n,
            counts_line_ends,
            self.may_infill,
        )


def length_settings(name: str, n_most: int | None) -> dict[str, Any]:
    """Returns the settings of a limit of tokens; -1 is how local servers write none.

    Raises:
        ServeError: It is 0.
    """
    if n_most is None or n_most < 0:
        return {}
    if n_most == 0:
        raise invalid(f"{name} is 0, expected at least 1, or -1 for no limit", param=name)
    return {"max_new_tokens": n_most}


def call_arguments(arguments: Any) -> dict[str, Any]:
    """Returns the arguments of a call as templates read them.

    given: of an earlier turn, so anything. Of JSON that was cut off, what is complete is kept.
    """
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = _cut_json(arguments)
    else:
        parsed = arguments
    if parsed is None or parsed == "":
        return {}
    return parsed if isinstance(parsed, dict) else {"arguments": parsed}


def tool_part_text(part: Any) -> str:
    """Returns a part of what a tool of the client gave, in words if the model cannot read it.

    Such a result stays in the conversation: if it were refused, so would be every later turn.
    """
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return json.dumps(part, ensure_ascii=False)
    text = part.get("text")
    if isinstance(text, str):
        return text
    return f"[{str(part.get('type') or 'part')[:40]} left out: this model reads text alone]"


def _cut_json(text: str) -> Any:
    """Returns what is complete of JSON that was cut off; text that is no JSON, as it is."""
    try:
        return _ANY_JSON.validate_json(text, experimental_allow_partial="trailing-strings")
    except ValueError:
        return text.strip()


def checked_stops(stops: list[str]) -> list[str]:
    """Returns the texts that end an answer.

    Raises:
        ServeError: There are too many.
    """
    if len(stops) > MAX_STOPS:
        message = f"there are {len(stops)} stop texts, expected at most {MAX_STOPS}"
        raise invalid(message, param="stop")
    return stops


def text_prompts(field: TextPrompts, most: int = MAX_PROMPTS) -> list[TextPrompt]:
    """Returns the prompts that a field states.

    Raises:
        ServeError: It states none, or too many.
    """
    is_one = isinstance(field, str) or (bool(field) and isinstance(field[0], int))
    prompts: list[Any] = [field] if is_one else list(field)
    if not 1 <= len(prompts) <= most:
        n = len(prompts)
        raise invalid(f"there are {n} prompts, expected 1 to {most}", param="prompt")
    return [TextPrompt(prompt) for prompt in prompts]


def stated_fields(body: Body, names: dict[str, str]) -> dict[str, Any]:
    """Returns the fields of ``body`` that are stated, by the name that ``names`` gives them.

    Of two fields for one thing, the last that is stated holds.
    """
    values = [(ours, getattr(body, theirs)) for theirs, ours in names.items()]
    return {name: value for name, value in values if value is not None}


def _bias(item: tuple[Any, float | bool]) -> tuple[int, float]:
    token, bias = str(item[0]), item[1]
    if bias is False:  # llama-server's word for never
        bias = -100
    if not token.isdecimal() or len(token) > _MAX_DIGITS:
        raise invalid(
            f"logit_bias has the key {token[:20]!r}, expected token ids (/tokenize gives them)",
            param="logit_bias",
        )
    # Minus 100 and less forbids a token, as those do who made the field.
    return int(token), float("-inf") if bias <= -100 else bias


def read_body(kind: type[B], data: bytes) -> B:
    """Returns the body in ``data``.

    Raises:
        ServeError: It is no JSON, or not of this kind; the first fault is named.
    """
    try:
        body = kind.model_validate_json(data)
    except ValidationError as error:
        raise _problem(error) from None
    check_others(body)
    return body


def check_others(value: Any, place: str = "") -> None:
    """Checks the fields of a body, and of those in it, that are not used.

    Raises:
        ServeError: One of them asks for what cannot be done.
    """
    if isinstance(value, list):
        for item in value:
            check_others(item, place)
    if not isinstance(value, Body):
        return
    for name in type(value).model_fields:
        check_others(getattr(value, name), f"{place}{name}.")
    for name, value_ in (value.model_extra or {}).items():
        _check_other(type(value), name, value_, place)


def _check_other(kind: type[Body], name: str, value: Any, place: str) -> None:
    if name not in kind.others:
        if (kind, name) not in _LOGGED and len(_LOGGED) < _MAX_LOGGED:
            _LOGGED.add((kind, name))
            logger.warning("the field %r is not known here, and has no effect", (place + name)[:80])
        return
    row = kind.others[name]
    if row is not None and value and value not in row.unless:
        raise invalid(f"{place}{name}: {row.reason}: leave it out", param=place + name)


def _problem(error: ValidationError) -> ServeError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return invalid(f"the body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}")
    place = ".".join(map(str, first["loc"])) or "the body"
    return invalid(f"{place}: {first['msg']}", param=place)
