"""Where an answer ends: before what is on offer is likely to be wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from edgedec.autocomplete import AutocompleteConfig, Document
from edgedec.autocomplete.answer import Continuation
from edgedec.autocomplete.document import Window
from edgedec.runtime.decoding.switching.policy import Signal
from edgedec.runtime.engine.stream import Piece

START = Window("a.txt", 0, "x = ", "")


class Told:
    """A stream of pieces, each as likely as the model says; the last one comes again and again."""

    def __init__(self, texts: Sequence[str], probability: float) -> None:
        self._texts = texts
        self.signal = Signal(1.0, 0.1, probability)
        self.pieces = self._pieces()

    def _pieces(self) -> Iterator[Piece]:
        for text in self._texts:
            yield Piece(text)


def answer(texts: Sequence[str], half_word: str = "", is_block: bool = False) -> Continuation:
    """Returns an answer of pieces that have probability 0.7 each; offers need 0.3."""
    config = AutocompleteConfig(min_probability=0.3, is_block=is_block)
    stream = cast(Any, Told(texts, 0.7))
    return Continuation(Document(START.before, 4, "a.txt"), START, half_word, stream, config)


def advanced(one: Continuation) -> str:
    """Returns the text when it has ended."""
    while one.advance():
        pass
    assert one.is_ended
    return one.text


def test_three_of_seven_tenths_are_likely_and_four_are_not() -> None:
    one = answer("abcdef")
    assert advanced(one) == "abc"  # 0.7 ** 3 = 0.34, 0.7 ** 4 = 0.24
    assert one.probability == pytest.approx(0.7**3)


def test_a_piece_that_completes_half_a_word_counts() -> None:
    one = answer(["ab", "cdef"], half_word="a")
    assert advanced(one) == "abcdef"
    assert one.probability == pytest.approx(0.7**2)
    one = answer(["ab", "c", "d", "e"], half_word="a")
    assert advanced(one) == "abcd"  # 0.7 ** 3, the first piece with them


def test_what_was_typed_is_certain() -> None:
    one = answer("abcdef")
    assert one.advance()
    assert one.advance()
    assert one.follow(Window("a.txt", 0, START.before + "ab", ""))
    assert advanced(one) == "abcde"
    assert one.rest == "cde"


def test_half_a_word_is_certain() -> None:
    assert advanced(answer("abcdef", half_word="ab")) == "abcde"


def test_each_line_is_offered_by_itself() -> None:
    lines = ["a", "b", "c\n", "d", "e", "f\n", "g", "h", "i", "j"]
    assert advanced(answer(lines)) == "abc\ndef\nghi"
    assert advanced(answer(lines, is_block=True)) == "abc\n"


def test_blank_lines_before_it_are_part_of_a_line() -> None:
    assert advanced(answer(["\n", "  ", "a", "b"])) == "\n  a"
