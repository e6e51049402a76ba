"""Measures what KV maps gain, on texts that they were not fitted on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.result import GenerationResult
from edgedec.training.kv_maps.kv_progress import HELD_OUT

_N_PROMPTS = 4
"""Of these, the first one warms up."""

_LENGTHS = (512, 256)
"""Tokens of a prompt: the first of these numbers that gives enough prompts."""

MAX_NEW_TOKENS = 16
"""Tokens that the model writes after each."""

_BUDGET_S = 60.0
"""No prompt begins later than this after the first."""

_CLEAR = 1.03
"""A ratio that other work on the machine seldom makes."""


@dataclass(frozen=True)
class PromptTimes:
    """Times of one prompt, in ms: until the first token that is shown, and of whole requests.

    n_shown, n_kept: provisional tokens, and those that were right.
    """

    first: float
    first_before: float
    whole: float
    whole_before: float
    n_shown: int = 0
    n_kept: int = 0

    @property
    def first_ratio(self) -> float:
        """Time until the first token over that without the maps."""
        return self.first / self.first_before

    @property
    def whole_ratio(self) -> float:
        """Time of the whole request over that without the maps."""
        return self.whole / self.whole_before


@dataclass(frozen=True)
class MapsCheck:
    """What maps gained on some prompts. n_tokens: of each."""

    n_tokens: int
    times: tuple[PromptTimes, ...]

    def medians(self) -> PromptTimes:
        """Returns the medians of all times, and all provisional tokens."""
        return PromptTimes(
            first=median(t.first for t in self.times),
            first_before=median(t.first_before for t in self.times),
            whole=median(t.whole for t in self.times),
            whole_before=median(t.whole_before for t in self.times),
            n_shown=sum(t.n_shown for t in self.times),
            n_kept=sum(t.n_kept for t in self.times),
        )

    def to_dict(self) -> dict[str, object]:
        """Returns JSON-ready fields. Ratios: of times, below 1 where the maps gain."""
        shown = self.medians()
        return {
            "n_texts": len(self.times),
            "n_prompt_tokens": self.n_tokens,
            "first_ratio": round(shown.first_ratio, 3),
            "whole_ratio": round(shown.whole_ratio, 3),
            "n_provisional": shown.n_shown,
            "n_confirmed": shown.n_kept,
        }

    def own_text(self) -> str:
        """Returns the verdict on maps of the model's own layers, for people."""
        shown = self.medians()
        verdict = (
            f"{self._where}: the first provisional token takes {shown.first:.0f} ms, an exact "
            f"first token {shown.first_before:.0f} ms ({shown.first_ratio:.2f} of the time); "
            f"{shown.n_kept} of {shown.n_shown} provisional tokens were right; whole requests "
            f"take {shown.whole_ratio:.2f} of the time"
        )
        if shown.first_ratio > 1 / _CLEAR:
            verdict += ". No gain: read prompts with --prefill exact, or fit with a smaller --exit"
        return verdict

    def draft_text(self) -> str:
        """Returns the verdict on maps to the draft model, for people."""
        shown = self.medians()
        verdict = (
            f"{self._where}: requests that draft {MAX_NEW_TOKENS} tokens take "
            f"{shown.whole:.0f} ms, before {shown.whole_before:.0f} ms ({shown.whole_ratio:.2f} of "
            "the time)"
        )
        if shown.whole_ratio > 1 / _CLEAR:
            verdict += ". No clear gain: export the pair again to be without the maps"
        return verdict

    @property
    def _where(self) -> str:
        return f"verdict on {len(self.times)} prompts of {self.n_tokens} tokens from other texts"


def held_out_prompts(windows: Iterable[Sequence[int]]) -> list[list[int]]:
    """Returns prompts of one length, from windows that maps are measured with; none if too few."""
    held_out = list(islice(windows, 1, 1 + _N_PROMPTS * HELD_OUT, HELD_OUT))
    for length in _LENGTHS:
        pieces = [
            list(window[start : start + length])
            for window in held_out
            for start in range(0, len(window) - length + 1, length)
        ]
        if len(pieces) >= _N_PROMPTS:
            return pieces[:_N_PROMPTS]
    return []


Ask = Callable[[Engine, Sequence[int]], GenerationResult]


def own_maps_check(
    engine: Engine, prompts: Sequence[Sequence[int]], is_over: Callable[[], bool]
) -> MapsCheck | None:
    """Returns what maps of the model's own layers gain; None if stopped, or without prompts."""

    def ask(prefill: str) -> Ask:
        return lambda engine, tokens: _answer(engine, tokens, "plain", prefill)

    pairs = ((engine, ask("progressive")), (engine, ask("exact")))
    return _check(pairs, prompts, is_over)


def draft_maps_check(
    after: Engine, before: Engine, prompts: Sequence[Sequence[int]], is_over: Callable[[], bool]
) -> MapsCheck | None:
    """Returns what maps to the draft model gain; None if stopped, or without prompts."""

    def ask(engine: Engine, tokens: Sequence[int]) -> GenerationResult:
        return _answer(engine, tokens, "draft", "exact")

    return _check(((after, ask), (before, ask)), prompts, is_over)


def _check(
    pairs: tuple[tuple[Engine, Ask], tuple[Engine, Ask]],
    prompts: Sequence[Sequence[int]],
    is_over: Callable[[], bool],
) -> MapsCheck | None:
    """Both ways read the same prompt, one after the other, and take turns in going first."""
    times: list[PromptTimes] = []
    end_s = time.monotonic() + _BUDGET_S
    for i, tokens in enumerate(prompts):
        if is_over() or (times and time.monotonic() > end_s):
            break
        order = pairs if i % 2 else pairs[::-1]
        answers = [ask(engine, tokens) for engine, ask in order]
        after, before = answers if i % 2 else answers[::-1]
        if i:
            times.append(_times(after, before))
    return MapsCheck(len(prompts[0]), tuple(times)) if times else None


def _times(after: GenerationResult, before: GenerationResult) -> PromptTimes:
    return PromptTimes(
        first=after.provisional_ms or after.ttft_ms,
        first_before=before.ttft_ms,
        whole=after.ttft_ms + after.tpot_ms * (after.n_new_tokens - 1),
        whole_before=before.ttft_ms + before.tpot_ms * (before.n_new_tokens - 1),
        n_shown=after.stats.n_provisional,
        n_kept=after.stats.n_confirmed,
    )


def _answer(engine: Engine, tokens: Sequence[int], method: str, prefill: str) -> GenerationResult:
    engine.forget_prompts()
    config = GenerationConfig(
        max_new_tokens=MAX_NEW_TOKENS, method=method, prefill=prefill, ignore_eos=True
    )
    return engine.generate(tokens, config)
