"""Grammars that begin where a thought ends, or where a model does without one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from edgedec.runtime.sampling.prefix_mask import Spellings
from edgedec.runtime.sampling.token_mask import Allowed, TokenMask
from edgedec.runtime.text.thoughts import State, ThoughtFormat, overlap
from edgedec.runtime.text.tokenizer import Codec

_MAX_BREAKS = 2  # line breaks between a thought and an answer


class ThoughtTokens:
    """The marks of a model's thoughts as tokens, and where thoughts end, whatever spells it.

    openings: tokens of what an output may begin with, and what follows. needs_opening: nothing
    else may begin it. before_answer: tokens between the end of a thought and the answer.
    breaks: tokens of line breaks, and how many they are.
    """

    def __init__(self, codec: Codec, spellings: Spellings, marks: ThoughtFormat) -> None:
        self._spellings = spellings
        self.n_ids = spellings.n_ids
        self.needs_opening = bool(marks.answer)
        self.openings: dict[tuple[int, ...], State] = {
            tuple(codec.encode_rendered(text, {})): state for text, state in marks.openings.items()
        }
        self.before_answer = tuple(codec.encode_rendered(marks.before_answer, {}))
        self._end = marks.end.encode("utf-8").decode("latin-1")
        self._names = {
            token: name.encode("utf-8").decode("latin-1")
            for token, name in codec.hidden_in([marks.end]).items()
        }
        self.breaks = {
            token: len(spelling)
            for token, spelling in spellings.of.items()
            if spelling.strip(b"\n") == b"" and len(spelling) <= _MAX_BREAKS
        }

    def after(self, tail: str, token: int) -> tuple[str, int]:
        """Returns what a thought ends with behind ``token``: its tail, or how it was left.

        tail: the end of the thought that may begin the mark. The second value is -1 within the
        thought, and else the line breaks behind its end.
        """
        text = tail + self._text(token)
        at = text.find(self._end)
        if at < 0:
            n = overlap(text, self._end)
            return text[len(text) - n :], -1
        return "", len(text) - at - len(self._end)

    def running_over(self, tail: str) -> Iterator[int]:
        """Yields tokens that would end the thought and begin the answer at once."""
        rest = self._end[len(tail) :].encode("latin-1") if tail else b""
        if not rest:
            return
        for token in self._spellings.beginning_with(rest):
            excess = self._spellings.of[token][len(rest) :]
            if excess.strip(b"\n") or len(excess) > _MAX_BREAKS:
                yield token

    def _text(self, token: int) -> str:
        if token in self._names:
            return self._names[token]
        return self._spellings.of.get(token, b"").decode("latin-1")


@dataclass(frozen=True)
class _Place:
    """Where an output is.

    seen: tokens of an opening, or of what stands before the answer. tail: see `ThoughtTokens`.
    n_breaks: line breaks since the thought's end. inner: tokens of the answer since the last that
    was accepted.
    """

    state: Literal["opening", "thought", "leaving", "gap", "answer"]
    seen: tuple[int, ...] = ()
    tail: str = ""
    n_breaks: int = 0
    inner: tuple[int, ...] = ()


class ThoughtMask:
    """A `TokenMask` that leaves thoughts free and has the answer follow another mask.

    A stop token ends no thought: the answer would be missing.
    """

    def __init__(
        self, mask: TokenMask, tokens: ThoughtTokens, begins: State, stops: frozenset[int]
    ) -> None:
        """mask: of the answer. begins: where the output begins. stops: tokens that end it."""
        self._mask = mask
        self._tokens = tokens
        self._stops = sorted(token for token in stops if token < tokens.n_ids)
        first: dict[str, _Place] = {"thought": _Place("thought"), "text": _Place("answer")}
        self._first = first.get(begins, _Place("opening"))
        self._place = self._first

    def begin(self, prompt: Sequence[int]) -> None:
        """A new output starts after ``prompt``."""
        self._mask.begin(prompt)
        self._place = self._first

    @property
    def is_free(self) -> bool:
        """From here on all is allowed, to the end."""
        return self._place.state == "answer" and self._mask.is_free

    @property
    def is_finished(self) -> bool:
        """Nothing may follow the accepted tokens, so the output ends."""
        return self._place.state == "answer" and self._mask.is_finished

    def forced(self) -> Sequence[int]:
        """Returns tokens that spell what has to follow the accepted ones."""
        if self._place.state == "answer":
            return self._mask.forced()
        if self._place.state == "leaving":
            return self._tokens.before_answer[len(self._place.seen) :]
        return ()

    def accept(self, token: int) -> None:
        """Records ``token`` as emitted; a stop token may be the last."""
        self._place = self._after(self._place, token)
        for answer in self._place.inner:
            self._mask.accept(answer)
        self._place = replace(self._place, inner=())

    def row_after(self, tokens: Sequence[int]) -> Allowed | None:
        """Returns the tokens allowed after the accepted ones and ``tokens``; None allows all.

        Shapes: [V] bool.
        """
        place = self._place
        for token in tokens:
            place = self._after(place, token)
        if place.state == "answer":
            return self._mask.row_after(place.inner)
        if place.state == "thought":
            return self._row_of_thought(place)
        if place.state == "leaving":
            return self._row_of({self._tokens.before_answer[len(place.seen)]})
        if place.state == "opening":
            return self._row_of_opening(place)
        breaks = self._tokens.breaks.items()
        return self._with_answer({t for t, n in breaks if n + place.n_breaks <= _MAX_BREAKS})

    def _after(self, place: _Place, token: int) -> _Place:
        """Returns the place behind ``token``."""
        if place.state == "opening":
            return self._after_opening(place, token)
        if place.state == "thought":
            tail, n_breaks = self._tokens.after(place.tail, token)
            if n_breaks < 0:
                return replace(place, tail=tail)
            return _Place("leaving" if self._tokens.before_answer else "gap", n_breaks=n_breaks)
        if place.state == "leaving":
            seen = (*place.seen, token)
            is_whole = len(seen) == len(self._tokens.before_answer)
            return _Place("answer") if is_whole else replace(place, seen=seen)
        if place.state == "gap" and token in self._tokens.breaks:
            return replace(place, n_breaks=place.n_breaks + self._tokens.breaks[token])
        return _Place("answer", inner=(*place.inner, token))

    def _after_opening(self, place: _Place, token: int) -> _Place:
        if not (place.seen or self._tokens.needs_opening) and self._begins_answer(token):
            return _Place("answer", inner=(token,))
        seen = (*place.seen, token)
        state = self._tokens.openings.get(seen)
        if state is None:
            return replace(place, seen=seen)
        return _Place("thought" if state == "thought" else "answer")

    def _begins_answer(self, token: int) -> bool:
        row = self._mask.row_after(())
        return row is None or bool(row[token])

    def _row_of_opening(self, place: _Place) -> Allowed | None:
        n = len(place.seen)
        openings = [o for o in self._tokens.openings if o[:n] == place.seen and len(o) > n]
        following = {opening[n] for opening in openings}
        if place.seen or self._tokens.needs_opening:
            return self._row_of(following)
        return self._with_answer(following)

    def _row_of_thought(self, place: _Place) -> Allowed:
        row = np.ones(self._tokens.n_ids, np.bool_)
        row[self._stops] = False
        row[list(self._tokens.running_over(place.tail))] = False
        return row

    def _row_of(self, tokens: set[int]) -> Allowed:
        row = np.zeros(self._tokens.n_ids, np.bool_)
        row[sorted(tokens)] = True
        return row

    def _with_answer(self, tokens: set[int]) -> Allowed | None:
        """Returns the row in which ``tokens`` are allowed, and what may begin the answer."""
        row = self._mask.row_after(())
        if row is None:
            return None
        row = row.copy()
        row[sorted(tokens)] = True
        return row
