"""An edit that is offered."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class EditCounts:
    """What predictions cost.

    n_prompt_tokens: of each prompt. n_read_tokens: of these, computed and not known from before.
    n_new_tokens, n_passes: of each answer, as far as it was needed.
    """

    n_prompt_tokens: list[int] = field(default_factory=list)
    n_read_tokens: list[int] = field(default_factory=list)
    n_new_tokens: list[int] = field(default_factory=list)
    n_passes: list[int] = field(default_factory=list)


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
