"""Thoughts that end after so many tokens: then only their closing mark is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from edgedec.runtime.sampling.prefix_mask import Spellings
from edgedec.runtime.sampling.token_mask import Allowed
from edgedec.runtime.text.thoughts import State, ThoughtFormat
from edgedec.runtime.text.tokenizer import Codec

_FIRST_MARK = 0x100000  # of a private-use plane, whose characters stand for special tokens
_MAX_CHARACTER = 4  # bytes
_BLANKS = " \t\r\n"


class ThoughtMarks:
    """The marks of a model's thoughts, in texts with a character per byte.

    closing: tokens that end a thought. is_anywhere: thoughts may also begin within an answer.
    """

    def __init__(self, codec: Codec, spellings: Spellings, marks: ThoughtFormat) -> None:
        names = codec.hidden_in([marks.begin, marks.end])
        self._spellings = spellings
        self._of_special = {token: chr(_FIRST_MARK + i) for i, token in enumerate(names)}
        by_name = {name: self._of_special[token] for token, name in names.items()}
        marked = marks.marked(dict(sorted(by_name.items(), key=lambda item: -len(item[0]))))
        self.n_ids = spellings.n_ids
        self.begin, self.end = _by_bytes(marked.begin), _by_bytes(marked.end)
        self.closing = codec.encode_rendered(marks.closing, {})
        self.is_anywhere = any(mark in marked.begin for mark in by_name.values())

    def text(self, token: int) -> str:
        """Returns the text of a token; nothing for special tokens that spell no mark."""
        if token in self._of_special:
            return self._of_special[token]
        return self._spellings.of.get(token, b"").decode("latin-1")


@dataclass(frozen=True)
class _Place:
    """Where an output is.

    tail: the last characters, in which a mark may have begun. n_spent: tokens of thoughts.
    n_closing: tokens of the closing mark that were forced.
    """

    state: Literal["start", "thought", "text"]
    tail: str = ""
    n_spent: int = 0
    n_closing: int = 0


class ThoughtBudget:
    """A `TokenMask` that ends thoughts after ``budget`` tokens, and leaves the rest free.

    Tokens of all thoughts of an output count, without the mark that begins one. A thought that is
    in the middle of a character first completes it.
    """

    is_finished = False

    def __init__(self, marks: ThoughtMarks, budget: int, begins: State) -> None:
        """begins: where the output begins."""
        self._marks, self._budget = marks, budget
        states: dict[str, _Place] = {"thought": _Place("thought"), "text": _Place("text")}
        self._first = states.get(begins, _Place("start"))
        self._place = self._first

    def begin(self, prompt: Sequence[int]) -> None:
        """A new output starts after ``prompt``."""
        self._place = self._first

    @property
    def is_free(self) -> bool:
        """No thought can follow."""
        return self._place.state == "text" and not self._marks.is_anywhere

    def forced(self) -> Sequence[int]:
        """Returns the rest of the closing mark, once the budget is spent."""
        place = self._place
        return self._marks.closing[place.n_closing :] if self._is_closing(place) else ()

    def accept(self, token: int) -> None:
        """Records ``token`` as emitted."""
        self._place = self._after(self._place, token)

    def row_after(self, tokens: Sequence[int]) -> Allowed | None:
        """Returns the tokens allowed after the accepted ones and ``tokens``; None allows all.

        Shapes: [V] bool.
        """
        place = self._place
        for token in tokens:
            place = self._after(place, token)
        if not self._is_closing(place):
            return None
        row = np.zeros(self._marks.n_ids, np.bool_)
        row[self._marks.closing[place.n_closing]] = True
        return row

    def _is_closing(self, place: _Place) -> bool:
        n_most = self._budget + (_MAX_CHARACTER if _is_cut(place.tail) else 0)
        is_spent = place.state == "thought" and place.n_spent >= n_most
        return place.n_closing > 0 or is_spent

    def _after(self, place: _Place, token: int) -> _Place:
        """Returns the place behind ``token``."""
        if self._is_closing(place):
            n_closing = place.n_closing + 1
            is_whole = n_closing == len(self._marks.closing)
            return replace(place, n_closing=n_closing) if not is_whole else self._left(place, "")
        text = place.tail + self._marks.text(token)
        if place.state == "start":
            return self._after_start(place, text)
        if place.state == "thought":
            place = replace(place, n_spent=place.n_spent + 1)
            return self._in_thought(place, text)
        at = text.find(self._marks.begin) if self._marks.is_anywhere else -1
        if at >= 0:
            return self._in_thought(place, text[at + len(self._marks.begin) :])
        return self._left(place, text)

    def _after_start(self, place: _Place, text: str) -> _Place:
        begin, head = self._marks.begin, text.lstrip(_BLANKS)
        if head.startswith(begin):
            return self._in_thought(place, head[len(begin) :])
        return replace(place, tail=text) if begin.startswith(head) else self._left(place, text)

    def _in_thought(self, place: _Place, text: str) -> _Place:
        """Returns the place within a thought, or behind it. text: not looked through so far."""
        at = text.find(self._marks.end)
        if at >= 0:
            return self._left(place, text[at + len(self._marks.end) :])
        n_tail = max(len(self._marks.end) - 1, _MAX_CHARACTER - 1)
        return replace(place, state="thought", tail=text[-n_tail:])

    def _left(self, place: _Place, text: str) -> _Place:
        """Returns the place behind a thought, where ``text`` has been seen of an answer."""
        n_tail = len(self._marks.begin) - 1
        return _Place("text", text[max(0, len(text) - n_tail) :], place.n_spent)


def _by_bytes(text: str) -> str:
    """Returns ``text`` with a character per byte; those of private use stay."""
    return "".join(
        char if ord(char) >= _FIRST_MARK else char.encode().decode("latin-1") for char in text
    )


def _is_cut(text: str) -> bool:
    """Whether ``text``, with a character per byte, ends in the middle of a UTF-8 character."""
    for n, char in enumerate(reversed(text[1 - _MAX_CHARACTER :]), 1):
        if not 0x80 <= ord(char) < 0xC0:
            n_bytes = (ord(char) >= 0xC0) + (ord(char) >= 0xE0) + (ord(char) >= 0xF0) + 1
            return ord(char) < _FIRST_MARK and n < n_bytes
    return False
