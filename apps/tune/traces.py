"""What both models of a pair say along the target model's own texts: the material of tuning."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.decoding.switching.paired_model import PairedModel
from edgedec.runtime.decoding.switching.policy import Signal
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.sequence import TokenSequence

_ROWS = 64  # asked for in one pass


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model says of the token at a position. token: its likeliest."""

    signal: Signal
    token: int


@dataclass(frozen=True)
class Trace:
    """One text of the target model, token by token.

    draft, target: how sure each model was of that token. agrees: it is the draft model's, too.
    """

    draft: tuple[Signal, ...]
    target: tuple[Signal, ...]
    agrees: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.agrees)

    @classmethod
    def record(
        cls, text: Sequence[int], n_prompt: int, target: TokenSequence, draft: TokenSequence
    ) -> Self:
        """Returns the trace of ``text``, which the target model wrote after ``n_prompt`` tokens."""
        says_target = predictions(target, text, n_prompt)
        says_draft = predictions(draft, text, n_prompt)
        return cls(
            draft=tuple(prediction.signal for prediction in says_draft),
            target=tuple(prediction.signal for prediction in says_target),
            agrees=tuple(
                prediction.token == token
                for prediction, token in zip(says_draft, text[n_prompt:], strict=True)
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields that `from_dict` reads back."""
        return {
            "draft": [_numbers(signal) for signal in self.draft],
            "target": [_numbers(signal) for signal in self.target],
            "agrees": [int(agrees) for agrees in self.agrees],
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """Returns the trace that `to_dict` wrote; a ValueError where it is none."""
        draft, target = (
            tuple(Signal(*map(float, numbers)) for numbers in fields[name])
            for name in ("draft", "target")
        )
        agrees = tuple(bool(value) for value in fields["agrees"])
        if not len(draft) == len(target) == len(agrees):
            raise ValueError("a trace of unequal parts")
        return cls(draft, target, agrees)


def predictions(sequence: TokenSequence, text: Sequence[int], n_prompt: int) -> list[Prediction]:
    """Returns what the model says of each token after the prompt, given all before it."""
    model = PairedModel(sequence, n_prompt)
    found: list[Prediction] = []
    while len(found) < len(text) - n_prompt:
        n_rows = min(_ROWS, len(text) - n_prompt - len(found))
        stop = n_prompt + len(found) + n_rows - 1
        stats = run_passes(model.rows_after(text[:stop], n_rows, with_logits=False)).stats
        found += [Prediction(Signal.of(stats, i), int(stats.argmax[i])) for i in range(n_rows)]
    return found


def generate_until(
    engine: Engine, prompt: Sequence[int], request: GenerationConfig, deadline_s: float
) -> GenerationResult:
    """Returns the output, cut short where the monotonic clock passes ``deadline_s``."""
    stream = engine.stream(list(prompt), request)
    for _ in stream:
        if time.monotonic() > deadline_s:
            stream.stop()
    return stream.result


def _numbers(signal: Signal) -> list[float]:
    return [round(value, 6) for value in (signal.entropy, signal.margin, signal.top_prob)]
