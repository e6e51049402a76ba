"""Edits at positions in UTF-16 units, against an oracle that encodes the text and counts."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.apps.lsp import text_buffer
from edgedec.apps.lsp.text_buffer import TextBuffer, from_units, to_units

SIGNS = [
    "a",
    "b",
    "\n",
    "\r",
    "\r\n",
    "é",
    "e\u0301",
    "日",
    "🙂",
    "👩‍👩‍👧",
    "\ud83d",
    "\ude42",
    "\x0b\u2028\x85",
]
TEXTS = st.lists(st.sampled_from(SIGNS), max_size=30).map("".join)
EDITS = st.lists(st.tuples(*[st.integers(0, 12)] * 4, st.booleans(), TEXTS), max_size=12)


class Utf16Text:
    """The oracle: bytes in UTF-16, cut at line ends into lists."""

    def __init__(self, text: str) -> None:
        self.encoded = text.encode("utf-16-le", "surrogatepass")

    @property
    def text(self) -> str:
        return self.encoded.decode("utf-16-le", "surrogatepass")

    def byte(self, line: int, character: int) -> int:
        lines, at = [b""], 0
        while at < len(self.encoded):
            unit = self.encoded[at : at + 2]
            is_pair = self.encoded[at : at + 4] == "\r\n".encode("utf-16-le")
            if unit in (b"\n\0", b"\r\0"):
                lines[-1] += b"|\0" * (1 + is_pair)  # marks, so that lengths stay
                lines.append(b"")
                at += 2 * is_pair
            else:
                lines[-1] += unit
            at += 2
        if line >= len(lines):
            return len(self.encoded)
        length = len(lines[line])
        if line < len(lines) - 1:
            length = len(re.sub(rb"(\|\0)+$", b"", lines[line]))
        return sum(map(len, lines[:line])) + min(2 * character, length)

    def edit(self, start: int, stop: int, text: str) -> None:
        new = text.encode("utf-16-le", "surrogatepass")
        self.encoded = self.encoded[:start] + new + self.encoded[max(start, stop) :]


@pytest.mark.parametrize("piece", [4, 16384])
@given(text=TEXTS, edits=EDITS)
@settings(max_examples=60)
def test_edits_are_those_of_the_oracle(
    piece: int, text: str, edits: list[tuple[int, int, int, int, bool, str]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_buffer, "_PIECE", piece)
        buffer, oracle = TextBuffer(text), Utf16Text(text)
        for line, character, line_2, character_2, is_insertion, new in edits:
            start = buffer.offset(line, character)
            stop = start if is_insertion else buffer.offset(line_2, character_2)
            assert 2 * start == oracle.byte(line, character)
            if not is_insertion:
                assert 2 * stop == oracle.byte(line_2, character_2)
            buffer.replace(start, stop, new)
            oracle.edit(2 * start, 2 * stop, new)
            assert buffer.text == oracle.text
        for start in range(0, len(oracle.encoded) // 2, 3):
            cut = buffer.slice(start, start + 5).encode("utf-16-le", "surrogatepass")
            assert cut == oracle.encoded[2 * start : 2 * start + 10]


@given(TEXTS)
def test_units_are_those_of_utf_16(text: str) -> None:
    encoded = text.encode("utf-16-le", "surrogatepass")
    assert 2 * len(to_units(text)) == len(encoded)
    assert from_units(to_units(text)) == encoded.decode("utf-16-le", "surrogatepass")


def test_positions_beyond_a_line_or_the_text_are_its_end() -> None:
    buffer = TextBuffer("ab\r\nc\rd")
    assert [buffer.offset(0, n) for n in (0, 2, 3, 99)] == [0, 2, 2, 2]
    assert [buffer.offset(n, 99) for n in (1, 2, 3, 99)] == [5, 7, 7, 7]
    assert buffer.offset(-1, -1) == 0


def test_halves_of_a_character_that_meet_are_one() -> None:
    buffer = TextBuffer("a🙂b")
    assert [buffer.whole(at) for at in range(5)] == [0, 1, 1, 3, 4]
    buffer.replace(2, 3, "\ude00")  # its second half alone, as some editors send
    assert buffer.text == "a😀b"
    buffer.replace(2, 3, "")
    assert buffer.text == "a\ud83db"
    buffer.replace(2, 2, "\ude42")
    assert buffer.text == "a🙂b"


@pytest.mark.parametrize("line", ["x" * 99 + "\n", "x", "🙂é日\r\n"], ids=["lines", "line", "wide"])
def test_pieces_near_an_edit_alone_are_touched(line: str) -> None:
    buffer = TextBuffer(line * (5_000_000 // len(line)))
    middle = len("".join(p.units for p in buffer._pieces)) // 2
    before = buffer._pieces[:]
    for at in range(middle, middle + 100):
        buffer.replace(at, at, "k")
    kept = {id(piece) for piece in before} & {id(piece) for piece in buffer._pieces}
    assert len(kept) >= len(before) - 4


def test_pieces_stay_of_a_size_after_many_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_buffer, "_PIECE", 64)
    buffer = TextBuffer("word " * 2000)
    for i in range(3000):
        at = i * 7919 % 9000
        buffer.replace(at, at + i % 3, "xy"[: i % 4])
    sizes = [len(piece.units) for piece in buffer._pieces]
    assert len(sizes) < 3 * sum(sizes) / 64
