"""What a key does to the suggestion at the cursor, on any system."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from edgedec.apps.type.prose import first_word, fitted, is_worth_asking
from edgedec.apps.type.settings import TypeSettings
from edgedec.apps.type.text_place import GhostView, Key, TextPlace


class Completer(Protocol):
    """A model that continues texts, elsewhere: nothing here waits for it."""

    def update(self, before: str, after: str) -> None:
        """Asks for a suggestion between two parts of a text."""

    def alternatives(self) -> None:
        """Asks for other suggestions at the latest place."""

    def pause(self) -> None:
        """Gives up what was asked for."""


class Suggestions:
    """The suggestion at the cursor of the field that somebody writes in.

    Only `Key` Tab and Ctrl+Right insert something. Whatever else happens hides what is on offer.
    """

    def __init__(
        self, completer: Completer, view: GhostView, settings: Callable[[], TypeSettings]
    ) -> None:
        self._completer, self._view, self._settings = completer, view, settings
        self._place: TextPlace | None = None
        self._is_waiting = False
        self._others: list[str] = []
        self.ghost = ""

    def enter(self, place: TextPlace) -> None:
        """Somebody turns to a field."""
        self.hide()
        self._place = place

    def leave(self, place: TextPlace) -> None:
        """Somebody left a field."""
        if place is self._place:
            self.hide()
            self._place = None

    def takes(self, key: Key) -> bool:
        """Handles a key that is for the suggestion; False: it is the application's."""
        if not self.ghost or self._place is None:
            return False
        if key == Key("Tab"):
            self._insert(self.ghost)
        elif key == Key("Right", is_control=True):
            self._insert(first_word(self.ghost))
        elif key == Key("Escape"):
            self.hide()
        elif key == Key("]", is_alt=True):
            self._show_other()
        else:
            return False
        return True

    def typed(self, text: str) -> None:
        """A key wrote something, which is in the field's text already."""
        ghost, agrees = self.ghost, bool(text) and self.ghost.startswith(text)
        if agrees and len(ghost) > len(text):
            self._others = []
            self._show(ghost[len(text) :])
        else:
            self.hide()
        self.ask()

    def ask(self) -> None:
        """Asks for a suggestion at the cursor, if one may be shown there."""
        place = self._place
        if place is None or not self._settings().allows(place.application, place.kind):
            self.hide()
        elif is_worth_asking(place.before, place.after):
            self._is_waiting = True
            self._completer.update(place.before, place.after)
        else:
            self.hide()

    def hide(self) -> None:
        """Nothing is on offer any more, nor asked for."""
        if self._is_waiting:
            self._completer.pause()
        self._is_waiting, self._others = False, []
        self._show("")

    def moved(self) -> None:
        """The caret is elsewhere on the screen."""
        if self.ghost and self._place is not None:
            self._view.show(self.ghost, self._place)

    def offered(self, text: str, is_complete: bool) -> None:
        """The model continues the text as it was last asked for."""
        if not self._is_waiting or self._place is None:
            return
        n_words = self._settings().words
        shown = fitted(self._place.before, self._place.after, text, is_complete, n_words)
        if is_complete or (shown and not self.ghost.startswith(shown)):
            self._show(shown)

    def offered_others(self, texts: Sequence[str]) -> None:
        """The model has other continuations."""
        if self._place is None or not self.ghost:
            return
        n_words, place = self._settings().words, self._place
        shown = [fitted(place.before, place.after, text, True, n_words) for text in texts]
        self._others = [text for text in dict.fromkeys([*shown, self.ghost]) if text]
        self._show_other()

    def _insert(self, text: str) -> None:
        assert self._place is not None
        rest = self.ghost[len(text) :]
        self._show("")
        self._place.insert(text)
        self._others = []
        self.ask()
        if rest and self._is_waiting:
            self._show(rest)

    def _show_other(self) -> None:
        if not self._others:
            self._completer.alternatives()
            return
        at = self._others.index(self.ghost) if self.ghost in self._others else -1
        self._show(self._others[(at + 1) % len(self._others)])

    def _show(self, text: str) -> None:
        had, self.ghost = self.ghost, text
        if text and self._place is not None:
            self._view.show(text, self._place)
        elif had:
            self._view.hide()
