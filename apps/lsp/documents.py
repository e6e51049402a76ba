"""The documents that an editor has open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lsprotocol import types

from edgedec.apps.lsp.text_buffer import LINE_END, TextBuffer, from_units, to_units
from edgedec.autocomplete import Document

_GRID = 4096
"""Units by which the beginning of a part of a document moves, so that most keys leave it."""


@dataclass
class OpenDocument:
    """A text, and what the editor calls it.

    place: where somebody was last. is_news: it was not shown to the model as it is now.
    version: the editor's number of this state. edited_line: where it was changed last.
    """

    uri: str
    buffer: TextBuffer
    place: types.Position = field(default_factory=lambda: types.Position(0, 0))
    is_news: bool = True
    version: int = 0
    edited_line: int = 0

    def change(self, changes: Sequence[types.TextDocumentContentChangeEvent]) -> None:
        """Makes the changes of one notification, each to what the one before left."""
        self.is_news = True
        for change in changes:
            if isinstance(change, types.TextDocumentContentChangePartial):
                start, end = change.range.start, change.range.end
                self.buffer.replace(
                    self.buffer.offset(start.line, start.character),
                    self.buffer.offset(end.line, end.character),
                    change.text,
                )
                self.place = start
            else:
                self.buffer = TextBuffer(change.text)

    @property
    def text(self) -> str:
        """All of it."""
        return self.buffer.text

    def is_large(self, max_units: int) -> bool:
        """Says whether the document has more than so many UTF-16 units."""
        return self.buffer.n_units > max_units

    def whole(self, position: types.Position | None = None) -> Document:
        """Returns the whole document, with the cursor at a position, or at its beginning."""
        at = 0 if position is None else self._whole_offset(position)
        return Document(self.text, len(from_units(self.buffer.slice(0, at))), self.uri)

    def position(self, at: int) -> types.Position:
        """Returns where a character of the document is."""
        before = to_units(self.text[:at])
        ends = [end.end() for end in LINE_END.finditer(before)]
        return types.Position(len(ends), len(before) - max(ends, default=0))

    def near(self, position: types.Position, reach: int) -> Document:
        """Returns the part of the document within ``reach`` characters of a position."""
        at = self._whole_offset(position)
        start = self.buffer.whole(max(0, at - 2 * reach) // _GRID * _GRID)
        before = from_units(self.buffer.slice(start, at))
        after = from_units(self.buffer.slice(at, at + 2 * reach))
        return Document(before + after, len(before), self.uri, start)

    def with_selected(self, selected: types.SelectedCompletionInfo, reach: int) -> Document:
        """Returns the part as `near`, in which the selected item of a menu has been accepted."""
        before, after = (self.near(at, reach) for at in (selected.range.start, selected.range.end))
        text = before.text[: before.cursor] + selected.text
        return Document(text + after.text[after.cursor :], len(text), self.uri, before.offset)

    def has(self, position: types.Position) -> bool:
        """Says whether the document has the line of a position."""
        return position.line < self.buffer.n_lines

    def word_before(self, position: types.Position) -> tuple[str, types.Range]:
        """Returns the letters, digits and underscores that end at a position, and their range.

        The range ends where the position is, or at the end of the line that it is beyond.
        """
        at = self._whole_offset(position)
        line_start = self.buffer.line_start(position.line)
        n_units = at - line_start
        units = self.buffer.slice(max(line_start, at - 128), at)
        n = 0
        while n < len(units) and (units[-n - 1].isalnum() or units[-n - 1] == "_"):
            n += 1
        start, end = (types.Position(position.line, c) for c in (n_units - n, n_units))
        return units[len(units) - n :], types.Range(start, end)

    def _whole_offset(self, position: types.Position) -> int:
        return self.buffer.whole(self.buffer.offset(position.line, position.character))
