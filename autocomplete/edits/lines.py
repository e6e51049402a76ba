"""Lines as editors count them: they end in a line feed, a carriage return, or both."""

from __future__ import annotations

import io
from collections.abc import Sequence


def lines_with_ends(text: str) -> list[str]:
    """Returns the lines of ``text`` with their ends; the last may have none."""
    return list(io.StringIO(text, newline=""))


def without_end(line: str) -> str:
    """Returns a line, or a text, without the line end that it may have."""
    return line.removesuffix("\n").removesuffix("\r")


def lines_of(text: str) -> list[str]:
    """Returns the lines of ``text`` without their ends."""
    return [without_end(line) for line in lines_with_ends(text)]


def joined(lines: Sequence[str]) -> str:
    """Returns lines, each with a line feed in place of its end."""
    return "".join(f"{without_end(line)}\n" for line in lines)


def line_end_of(text: str) -> str:
    """Returns the line end that a text uses."""
    return "\r\n" if "\r\n" in text else "\r" if "\r" in text and "\n" not in text else "\n"
