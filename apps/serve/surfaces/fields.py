"""What the bodies of several interfaces share."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgedec.apps.serve.core import ServeError, TextPrompt, invalid

MAX_CHOICES = 16
"""Most answers to one request."""

Role = Literal["system", "developer", "user", "assistant", "tool"]

MAX_PROMPTS = 64
"""Most prompts of one request."""

MAX_STOPS = 64
"""Most texts that end an answer: each is looked for behind every token."""

TextPrompts = str | list[str] | list[int] | list[list[int]]
"""One prompt or several, each text or token ids."""

_MAX_DIGITS = 10  # of a token id

B = TypeVar("B", bound="Body")


class Body(BaseModel):
    """JSON that a client sends; types are not guessed, unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


class Knobs(Body):
    """edgedec's own fields, the same wherever answers are asked for."""

    method: str | None = None
    verifier: str | None = None
    prefill: str | None = None
    draft_len: int | None = None
    draft_depth: int | None = None
    priority: str | None = None
    switch: dict[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None

    def knob_settings(self) -> dict[str, Any]:
        """Returns the settings of a request that these fields state."""
        names = ("method", "verifier", "prefill", "priority", "switch", "regex", "grammar")
        given = stated(self, {name: name for name in names})
        speculation = stated(self, {"draft_len": "draft_len", "draft_depth": "depth"})
        return {**given, "speculation": speculation} if speculation else given


class Sampling(Knobs):
    """How answers are sampled, in the field's usual names."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = Field(default=None)
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_sequence_breakers: list[str] | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    momentum: float | None = None
    no_repeat_ngram_size: int | None = None
    bad_words_ids: list[list[int]] | None = None
    min_new_tokens: int | None = None
    min_tokens: int | None = None
    begin_suppress_tokens: list[int] | None = None

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
            "min_new_tokens", "begin_suppress_tokens",
        )  # fmt: skip
        same = {name: name for name in names}
        sampling = stated(
            self,
            {"repeat_penalty": "repetition_penalty", "min_tokens": "min_new_tokens", **same},
        )
        if sampling.get("top_n_sigma", 0.0) < 0:  # how clients of llama-server turn it off
            sampling["top_n_sigma"] = 0.0
        if self.logit_bias:
            sampling["logit_bias"] = dict(map(_bias, self.logit_bias.items()))
        found = self.knob_settings()
        if sampling:
            found["sampling"] = sampling
        if self.seed is not None:
            found["seed"] = self.seed % 2**63
        if self.stop:
            found["stop"] = checked_stops([self.stop] if isinstance(self.stop, str) else self.stop)
        return found


def checked_stops(stops: list[str]) -> list[str]:
    """Returns the texts that end an answer.

    Raises:
        ServeError: There are too many.
    """
    if len(stops) > MAX_STOPS:
        message = f"there are {len(stops)} stop texts, expected at most {MAX_STOPS}"
        raise invalid(message, param="stop")
    return stops


def text_prompts(given: TextPrompts) -> list[TextPrompt]:
    """Returns the prompts that a field states.

    Raises:
        ServeError: It states none, or too many.
    """
    is_one = isinstance(given, str) or (bool(given) and isinstance(given[0], int))
    prompts: list[Any] = [given] if is_one else list(given)
    if not 1 <= len(prompts) <= MAX_PROMPTS:
        n = len(prompts)
        raise invalid(f"there are {n} prompts, expected 1 to {MAX_PROMPTS}", param="prompt")
    return [TextPrompt(prompt) for prompt in prompts]


def stated(body: Body, names: dict[str, str]) -> dict[str, Any]:
    """Returns the fields of ``body`` that are stated, by the name that ``names`` gives them."""
    found = {ours: getattr(body, theirs) for theirs, ours in names.items()}
    return {name: value for name, value in found.items() if value is not None}


def _bias(item: tuple[str, float]) -> tuple[int, float]:
    token, bias = item
    if not token.isdecimal() or len(token) > _MAX_DIGITS:
        raise invalid(
            f"logit_bias has the key {token[:20]!r}, expected token ids", param="logit_bias"
        )
    # Minus 100 and less forbids a token, as those do who made the field.
    return int(token), float("-inf") if bias <= -100 else bias


def read_body(kind: type[B], data: bytes) -> B:
    """Returns the body in ``data``.

    Raises:
        ServeError: It is no JSON, or not of this kind; the first fault is named.
    """
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise _problem(error) from None


def _problem(error: ValidationError) -> ServeError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return invalid(f"the body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}")
    place = ".".join(map(str, first["loc"])) or "the body"
    return invalid(f"{place}: {first['msg']}", param=place)
