"""A text with a cursor in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from edgedec.models.errors import ConfigError
from edgedec.runtime.config.checks import check_count, check_type


@dataclass(frozen=True)
class Excerpt:
    """Lines of another document, and the name of that."""

    name: str
    text: str

    @property
    def title(self) -> str:
        """What the document is called in its folder."""
        return PurePosixPath(self.name).name


@dataclass(frozen=True)
class Document:
    """A text as an editor shows it, or the part of a long one that lies around the cursor.

    cursor: characters (code points) of the text before it.
    name: tells documents apart; a path or URI, as the editor likes.
    offset: where the text begins, in characters of the document of which it is a part. A part that
        has `Autocompleter.reach` characters on either side of the cursor is as good as all of it.

    Raises:
        ConfigError: The cursor is outside the text, or something is of a wrong type.
    """

    text: str
    cursor: int
    name: str = ""
    offset: int = 0

    def __post_init__(self) -> None:
        check_type("text of a document", self.text, str, "text")
        check_type("name of a document", self.name, str, "text")
        check_count("offset of a document", self.offset, 0, "it is where its text begins")
        check_count("cursor of a document", self.cursor, 0, "it is where somebody writes")
        if self.cursor > len(self.text):
            raise ConfigError(
                f"the cursor is at {self.cursor}, expected 0 to {len(self.text)}, the length of "
                f"the document {self.name!r}"
            )


@dataclass(frozen=True)
class Window:
    """What the model reads: a text before the cursor, one behind it, and lines of ``others``."""

    name: str
    start: int
    before: str
    after: str
    others: tuple[Excerpt, ...] = ()

    def typed_since(self, older: Window) -> str | None:
        """Returns what was typed at the cursor since ``older``; None if anything else changed."""
        is_same = replace(self, before="") == replace(older, before="")
        if not (is_same and self.before.startswith(older.before)):
            return None
        return self.before[len(older.before) :]
