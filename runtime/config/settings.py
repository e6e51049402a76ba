"""Settings that a call names directly: `engine.generate(prompt, temperature=0.7, stop="END")`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from edgedec.models.errors import ConfigError
from edgedec.runtime.config.generation import GenerationConfig
from edgedec.runtime.config.sampling import SamplingConfig
from edgedec.runtime.config.speculation import SpeculationConfig
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.config.unmasking import UnmaskConfig

_OTHER_CLIENTS = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "num_predict": "max_new_tokens",
    "n_predict": "max_new_tokens",
    "repeat_penalty": "repetition_penalty",
    "response_format": "json_schema",
    "top_logprobs": "logprobs",
    "min_tokens": "min_new_tokens",
    "bad_words": "bad_words_ids",
    "chat_template_kwargs": "template_variables",
}
"""Names that other clients use -> ours."""


class Settings(TypedDict, total=False):
    """The fields of `GenerationConfig` and of `SamplingConfig`, all optional."""

    max_new_tokens: int
    sampling: SamplingConfig
    seed: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    method: str | None
    verifier: str | None
    speculation: SpeculationConfig
    switch: SwitchConfig | None
    unmask: UnmaskConfig | None
    prefill: str
    prefill_pass_ms: float
    prefix_group: str
    is_one_of_many: bool
    priority: str | None
    prefix: str
    prediction: str
    logprobs: int | None
    json_schema: str | Mapping[str, Any] | None
    regex: str | None
    grammar: str | None
    template_variables: Mapping[str, Any]
    thought_budget: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_sequence_breakers: str | Sequence[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    momentum: float
    no_repeat_ngram_size: int
    bad_words_ids: Sequence[Sequence[int]]
    min_new_tokens: int
    begin_suppress_tokens: Sequence[int]
    temperature_last: bool


def with_settings(config: GenerationConfig, settings: Mapping[str, Any]) -> GenerationConfig:
    """Returns ``config`` with ``settings`` in place of its own.

    Raises:
        ConfigError: A setting is unknown, or its value makes no sense.
    """
    if unknown := sorted(set(settings) - set(Settings.__annotations__)):
        raise ConfigError(f"unknown setting {unknown[0]!r}: {_remedy(unknown[0])}")
    names = {field.name for field in dataclasses.fields(SamplingConfig)}
    changed = {name: value for name, value in settings.items() if name not in names}
    sampling = {name: value for name, value in settings.items() if name in names}
    if not sampling:
        return dataclasses.replace(config, **changed)
    if "sampling" in changed:
        raise ConfigError(f"sampling and {next(iter(sampling))} are given, expected one of them")
    new = dataclasses.replace(config.sampling, **sampling)
    return dataclasses.replace(config, **changed, sampling=new)


def _remedy(name: str) -> str:
    if (ours := _OTHER_CLIENTS.get(name)) is not None:
        return f"it is called {ours} here"
    import difflib  # only a mistake is worth its time

    known = sorted(Settings.__annotations__)
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
