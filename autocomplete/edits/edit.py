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


@dataclass(frozen=True)
class EditAnswer:
    """What a model made of one window, as far as it was read.

    text: what it wrote. edit: its first change, however likely; None if there is none to show.
    n_read_tokens: of the prompt's, those that were computed and not known from before.
    ms: from the update to the end of the answer.
    """

    text: str
    edit: Edit | None
    n_prompt_tokens: int
    n_read_tokens: int
    n_new_tokens: int
    n_passes: int
    ms: float
