"""An edit that is offered."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_N_COUNTED = 256
"""Predictions whose counts are kept."""


def _latest() -> deque[int]:
    return deque(maxlen=_N_COUNTED)


@dataclass
class EditCounts:
    """What the latest predictions cost, so that an editor's day takes no more memory.

    n_prompt_tokens: of each prompt. n_read_tokens: of these, computed and not known from before.
    n_new_tokens, n_passes: of each answer, as far as it was needed.
    """

    n_prompt_tokens: deque[int] = field(default_factory=_latest)
    n_read_tokens: deque[int] = field(default_factory=_latest)
    n_new_tokens: deque[int] = field(default_factory=_latest)
    n_passes: deque[int] = field(default_factory=_latest)


@dataclass(frozen=True)
class Edit:
    """Characters [start, end) of a document, whole lines, that are to become ``text``.

    line: of the first changed line, from 0. jump: character where the first change is.
    probability: of the changed lines, by the model. ms: from the update to this.
    version: number of the update that it is for.
    """

    name: str
    start: int
    end: int
    text: str
    line: int
    jump: int
    probability: float
    ms: float
    version: int

    def applied(self, text: str) -> str:
        """Returns the document's ``text`` after the edit."""
        return text[: self.start] + self.text + text[self.end :]
