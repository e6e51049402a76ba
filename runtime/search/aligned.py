"""Texts that follow a grammar without its mask bending their proportions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.checks import check_count
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.engine.stream import Stream
from edgedec.runtime.sampling.alignment import Alignment
from edgedec.runtime.sampling.noise import Noise

_ACCEPT = 1 << 33  # purpose of the coin that accepts a try, which no draw has

OpenTry = Callable[[GenerationConfig, Alignment], Stream]


@dataclass(frozen=True)
class Aligned:
    """What `Engine.generate_aligned` returns.

    result: the last try. n_tries: that were made. n_tokens: of all of them. is_exact: it was
    accepted, so that it is a sample of the model's own grammatical texts. bound: how likely the
    model writes a grammatical text when nothing holds it, at most, as far as the tries tell.
    """

    result: GenerationResult
    n_tries: int
    n_tokens: int
    is_exact: bool
    bound: float

    @property
    def text(self) -> str:
        """The last try's text."""
        return self.result.text

    def to_dict(self) -> dict[str, Any]:
        """Returns what `edgedec run --grammar-aligned --json` prints."""
        return {
            **self.result.to_dict(),
            "n_tries": self.n_tries,
            "n_tokens": self.n_tokens,
            "is_exact": self.is_exact,
            "bound": self.bound,
        }


def generate_aligned(open_try: OpenTry, config: GenerationConfig, n_tries: int) -> Aligned:
    """Returns the first try that is accepted, or the last; see `Engine.generate_aligned`."""
    _check(config, n_tries)
    alignment, n_tokens = Alignment(config.sampling.temperature), 0
    for i in range(n_tries):
        seed = config.seed + i
        alignment.begin()
        stream = open_try(replace(config, seed=seed), alignment)
        for _ in stream:
            pass
        result = stream.result
        n_tokens += result.n_new_tokens
        if result.finish_reason == "cancelled":
            break
        chance = alignment.end()
        is_whole = result.finish_reason == "stop"
        if is_whole and Noise(seed).uniform(result.n_prompt_tokens, _ACCEPT) < chance:
            return Aligned(result, i + 1, n_tokens, True, alignment.bound)
    return Aligned(result, i + 1, n_tokens, False, alignment.bound)


def _check(config: GenerationConfig, n_tries: int) -> None:
    check_count("n_tries", n_tries, 1, "the most tries at a text")
    sampling = config.sampling
    if config.constraint is None:
        raise ConfigError("there is no grammar to align with: give a schema, regex or grammar")
    if sampling.is_greedy:
        raise ConfigError("temperature is 0, and proportions are of samples: ask for one such as 1")
    if sampling.is_truncating or sampling.is_editing or sampling.mirostat:
        raise ConfigError(
            "aligned samples are of the model's own distribution: leave out top_k, top_p and the "
            "other truncations, biases, penalties and mirostat"
        )
    if config.verifier is not None or config.switch is not None:
        raise ConfigError(
            "aligned samples need the default verifier and the whole model: leave out verifier, "
            "switch and layers"
        )
