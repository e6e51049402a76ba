"""What both models of a pair say along the target model's own texts: the material of tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from edgedec.runtime.decoding.switching.policy import Signal
from edgedec.runtime.decoding.switching.predictions import predictions
from edgedec.runtime.sequences.sequence import TokenSequence


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


def _numbers(signal: Signal) -> list[float]:
    return [round(value, 6) for value in (signal.entropy, signal.margin, signal.top_prob)]
