"""Alternative completions of a prompt as text, for editors and keyboards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgedec.runtime.config.checks import check_progress, check_type
from edgedec.runtime.config.suggestion import SuggestConfig
from edgedec.runtime.drafting.stats import DecodeStats
from edgedec.runtime.engine.lending import Lending
from edgedec.runtime.search.completion_tree import EndReason, find_completions
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.prefill import ExactPrefiller, PrefillRequest, Progress
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.text.prompt import Prompt
from edgedec.runtime.text.tokenizer import Codec

_N_BEFORE = 8  # tokens that decide how the first new one is spelt


@dataclass(frozen=True)
class Completion:
    """One completion.

    token_probs: of each token after those before, at temperature 1.
    end: "length", "stop", or "unsure": see `SuggestConfig`.
    """

    text: str
    token_ids: tuple[int, ...]
    token_probs: tuple[float, ...]
    end: EndReason

    @property
    def probability(self) -> float:
        """Of the whole."""
        return math.prod(self.token_probs)

    @property
    def mean_probability(self) -> float:
        """Average per token: the geometric mean, so that length does not matter."""
        return math.exp(math.fsum(map(math.log, self.token_probs)) / len(self.token_probs))

    def to_dict(self) -> dict[str, Any]:
        """Returns what `edgedec suggest --json` prints of it."""
        return {
            "text": self.text,
            "probability": self.probability,
            "first_probability": self.token_probs[0],
            "mean_probability": self.mean_probability,
            "token_ids": list(self.token_ids),
            "token_probs": list(self.token_probs),
            "end": self.end,
        }


def suggest(
    lending: Lending,
    prompt: Prompt,
    config: SuggestConfig | None,
    on_progress: Progress | None,
) -> list[Completion]:
    """Returns completions of ``prompt``, the likeliest first; see `Engine.suggest`."""
    config = SuggestConfig() if config is None else config
    check_type("config", config, SuggestConfig, "a SuggestConfig or None")
    check_progress(on_progress)
    loaded, tokens = lending.loaded, lending.encode(prompt)
    limited = replace(config, stop_token_ids=config.stop_token_ids.union(loaded.stop_token_ids))
    return lending.run(
        tokens, lambda sequence: complete(sequence, loaded.tokenizer, tokens, limited, on_progress)
    )


def complete(
    sequence: TokenSequence,
    codec: Codec,
    tokens: Sequence[int],
    config: SuggestConfig,
    on_progress: Progress | None = None,
) -> Passes[list[Completion]]:
    """Returns completions of ``tokens``; the sequence then holds all of these but the last.

    on_progress hears of "prefill" and of "suggest"; what it raises ends both.

    Raises:
        SessionError: The completions do not fit the context.
    """
    before, anchor = tokens[:-1], tokens[-1]
    if before:
        request = PrefillRequest(DecodeStats(), with_logits=False, on_progress=on_progress)
        yield from ExactPrefiller().prefill(sequence, before, request)
    else:
        sequence.truncate(0)
    suggestions = yield from find_completions(sequence, anchor, config, on_progress)
    known = list(tokens[-_N_BEFORE:])
    n_known = len(codec.decode(known))
    return [
        Completion(
            text=codec.decode([*known, *suggestion.tokens])[n_known:],
            token_ids=suggestion.tokens,
            token_probs=tuple(min(1.0, math.exp(log_prob)) for log_prob in suggestion.log_probs),
            end=suggestion.end,
        )
        for suggestion in suggestions
    ]
