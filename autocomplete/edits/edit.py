"""An edit that is offered."""

from __future__ import annotations

from dataclasses import dataclass


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
