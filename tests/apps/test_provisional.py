"""Provisional text at a terminal: dim, and gone when it did not hold."""

from __future__ import annotations

import io
import re
import sys

import pytest

from edgedec.apps.console.provisional import PieceWriter, moved
from edgedec.apps.console.terminal import TextWriter
from edgedec.runtime.engine.stream import Piece

WIDTH = 12
_SIGN = re.compile(r"\x1b\[(\d*)([A-Za-z])")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(written: str) -> tuple[str, set[str]]:
    """Returns what a terminal of `WIDTH` columns shows, and the characters of it that are dim."""
    rows: list[list[tuple[str, bool]]] = [[]]
    row = column = 0
    dim = False
    at = 0
    while at < len(written):
        if sign := _SIGN.match(written, at):
            at, number = sign.end(), int(sign[1] or 0)
            if sign[2] == "A":
                row -= number
            elif sign[2] == "G":
                column = number - 1
            elif sign[2] == "J":
                del rows[row][column:], rows[row + 1 :]
            else:
                assert (sign[2], number) in (("m", 2), ("m", 22))
                dim = number == 2
            continue
        character, at = written[at], at + 1
        if character == "\n" or column == WIDTH:
            row, column = row + 1, 0
            rows += [[]] * (row == len(rows))
        if character != "\n":
            rows[row][column:] = [(character, dim)]
            column += 1
    shown = "\n".join("".join(c for c, _ in of_row) for of_row in rows)
    return shown, {c for of_row in rows for c, is_dim in of_row if is_dim}


def provisional(text: str, position: int) -> Piece:
    return Piece(text, "target", True, position)


STORY = [
    (provisional("abc", 0), "abc", "abc"),
    (provisional("\ndefghijklmnopqrs", 3), "abc\ndefghijklmno\npqrs", "abcdefghijklmnopqrs"),
    (provisional("tu", 20), "abc\ndefghijklmno\npqrstu", "abcdefghijklmnopqrstu"),
    (provisional("", 5), "abc\nd", "abcd"),
    (Piece("ab", position=0), "abc\nd", "cd"),
    (Piece("c\nd", position=2), "abc\nd", ""),
    (Piece("XYZ and more", position=5), "abc\ndXYZ and mor\ne", ""),
]


def test_the_screen_shows_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("TERM", "xterm")
    stdout = Terminal()
    monkeypatch.setattr(sys, "stdout", stdout)
    writer = PieceWriter(TextWriter())
    for piece, expected, dim in STORY:
        writer.write(piece)
        assert screen(stdout.getvalue()) == (expected, set(dim))


def test_what_was_never_confirmed_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("TERM", "xterm")
    stdout = Terminal()
    monkeypatch.setattr(sys, "stdout", stdout)
    writer = PieceWriter(TextWriter())
    for piece, _, _ in STORY[:3]:
        writer.write(piece)
    writer.end()
    assert screen(stdout.getvalue()) == ("", set())


def test_files_and_pipes_get_final_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stdout)
    writer = PieceWriter(TextWriter())
    for piece, _, _ in STORY:
        writer.write(piece)
    writer.end()
    assert stdout.getvalue() == "abc\ndXYZ and more"


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("", 3, (0, 3)),
        ("ab\n", 0, (1, 0)),
        ("abc", 10, (1, 1)),
        ("日本", 9, (1, 2)),
        ("\t", 3, (0, 8)),
    ],
)
def test_where_text_takes_the_cursor(text: str, column: int, expected: tuple[int, int]) -> None:
    assert moved(text, column, WIDTH) == expected
