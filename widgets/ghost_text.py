"""Text that is seen at a place of a document and is no part of it.

It stands where Qt lays out what an input method composes: in the line, but not in the document, so
that neither undo, nor files, nor the clipboard know of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QSignalBlocker
from PySide6.QtGui import (
    QColor,
    QTextBlock,
    QTextCharFormat,
    QTextCursor,
    QTextDocument,
    QTextLayout,
)

from edgedec.widgets.units import n_units, text_between

Part = tuple[str, QColor]
"""A piece of text, and how it is painted."""

_Range = Any
"""A `QTextLayout.FormatRange`, of whose fields the stubs of PySide6 do not know."""

_LINE_SEPARATOR = "\u2028"
"""Breaks a line within a block, as the layout of Qt has it."""


@dataclass(frozen=True)
class Ghost:
    """What is on offer in a document, and at which place of it. Units: UTF-16.

    n_characters: of the document when it was shown, to tell what was typed since.
    """

    text: str
    parts: tuple[Part, ...]
    position: int
    n_characters: int


class GhostText:
    """The ghost of one document; one at a time."""

    def __init__(self, document: QTextDocument) -> None:
        self._document = document
        self._anchor = QTextCursor(document)  # in its line, wherever edits move that
        self.shown: Ghost | None = None

    def show(self, position: int, parts: Sequence[Part]) -> None:
        """Shows ``parts`` at a position, and nothing elsewhere."""
        self.hide()
        text = "".join(text for text, _ in parts)
        block = self._document.findBlock(position)
        at, layout = position - block.position(), block.layout()
        seen = [(_seen(part), colour) for part, colour in parts]
        n_seen = sum(n_units(part) for part, _ in seen)
        kept = layout.formats()
        layout.setPreeditArea(at, "".join(part for part, _ in seen))
        layout.setFormats([*_shifted(kept, at, n_seen), *_ranges(at, seen)])
        _lay_out(block)
        self._anchor = QTextCursor(block)
        self.shown = Ghost(text, tuple(parts), position, self._document.characterCount())

    def hide(self) -> Ghost | None:
        """Takes it away; returns what it was."""
        ghost, self.shown = self.shown, None
        if ghost is None:
            return None
        block = self._anchor.block()
        for neighbour in (
            block,
            block.previous(),
            block.next(),
        ):  # lines may have been joined, or parted
            if neighbour.isValid() and (n_seen := n_units(neighbour.layout().preeditAreaText())):
                at, layout = neighbour.layout().preeditAreaPosition(), neighbour.layout()
                kept, _ = _parted(layout.formats(), at, n_seen)
                layout.setPreeditArea(-1, "")
                layout.setFormats(kept)
                _lay_out(neighbour)
        return ghost

    def typed_since(self) -> str | None:
        """Returns what was typed at the ghost since it was shown; None if anything else changed."""
        ghost = self.shown
        if ghost is None:
            return None
        n = self._document.characterCount() - ghost.n_characters
        if n < 0 or self._document.characterCount() <= ghost.position + n:
            return None
        return text_between(self._document, ghost.position, ghost.position + n)


def format_line(block: QTextBlock, ranges: Sequence[tuple[int, int, QTextCharFormat]]) -> None:
    """Gives the text of a line other formats, and leaves what is on offer in it as it is.

    Args:
        ranges: Where each begins, and how long it is, without what is on offer. Units: UTF-16.
    """
    layout = block.layout()
    at, n_seen = layout.preeditAreaPosition(), n_units(layout.preeditAreaText())
    before, ghosts = _parted(layout.formats(), at, n_seen)
    if [(span.start, span.length, span.format) for span in before] == list(ranges):
        return
    layout.setFormats([*_shifted([_range(*span) for span in ranges], at, n_seen), *ghosts])
    _lay_out(block)


def _lay_out(block: QTextBlock) -> None:
    document = block.document()
    with QSignalBlocker(document):  # nothing of it has changed
        document.markContentsDirty(block.position(), block.length())


def _seen(text: str) -> str:
    return text.replace("\r", "").replace("\n", _LINE_SEPARATOR)


def _shifted(ranges: Sequence[_Range], at: int, n: int) -> list[_Range]:
    """Returns the ranges of a line into which ``n`` units were put."""
    return [
        _range(
            span.start + n * (span.start >= at),
            span.length + n * (span.start < at < span.start + span.length),
            span.format,
        )
        for span in ranges
    ]


def _parted(ranges: Sequence[_Range], at: int, n: int) -> tuple[list[_Range], list[_Range]]:
    """Returns the ranges of a line as they are without ``n`` units in it, and those within them."""
    if n == 0:
        return list(ranges), []
    within = [span for span in ranges if at <= span.start and span.start + span.length <= at + n]
    others = [
        _range(
            span.start - n * (span.start >= at + n),
            span.length - n * (span.start < at < span.start + span.length),
            span.format,
        )
        for span in ranges
        if span not in within
    ]
    return others, within


def _ranges(at: int, parts: Sequence[Part]) -> list[_Range]:
    spans = []
    for text, colour in parts:
        format = QTextCharFormat()
        format.setForeground(colour)
        spans.append(_range(at, n_units(text), format))
        at += n_units(text)
    return spans


def _range(start: int, length: int, format: QTextCharFormat) -> _Range:
    made: _Range = QTextLayout.FormatRange()
    made.start, made.length, made.format = start, length, format
    return made
