"""What a system has to offer for suggestions in its applications' text fields."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol


class FieldKind(Enum):
    """What a text field is for."""

    PROSE = "prose"
    TERMINAL = "terminal"
    NUMBER = "number"
    ADDRESS = "address"
    SECRET = "secret"
    """Passwords, PINs and private windows."""


class Rectangle(NamedTuple):
    """A part of the screen. Units: pixels of the screen."""

    x: int
    y: int
    width: int
    height: int


class Application(NamedTuple):
    """The program in front.

    name: in lower case; empty if nobody knows. is_private: its window is a private one. qt_scale:
    pixels of the screen in one of Qt's, as the program's environment has it.
    """

    name: str = ""
    is_private: bool = False
    qt_scale: float = 1.0


@dataclass(frozen=True)
class Key:
    """A key that was pressed.

    name: of keys that write nothing, such as "Tab", "Escape", "Right" and "BackSpace".
    text: what the key writes; empty if nothing.
    """

    name: str = ""
    text: str = ""
    is_control: bool = False
    is_alt: bool = False


class TextPlace(Protocol):
    """A text field that somebody writes in.

    before, after: as far as the application shows the text.
    caret: None if the application does not say.
    application: in lower case; empty if nobody knows.
    """

    @property
    def before(self) -> str:
        """The text before the cursor."""

    @property
    def after(self) -> str:
        """The text behind the cursor."""

    @property
    def caret(self) -> Rectangle | None:
        """Where the cursor is on the screen."""

    @property
    def kind(self) -> FieldKind:
        """What the field is for."""

    @property
    def application(self) -> str:
        """The program's name."""

    def insert(self, text: str) -> None:
        """Puts text in at the cursor, as one step of the application's undo."""


class GhostView(Protocol):
    """Shows a suggestion, and takes nothing: neither keys nor clicks."""

    def show(self, text: str, place: TextPlace) -> None:
        """Shows a text at a place's cursor."""

    def hide(self) -> None:
        """Shows nothing any more."""
