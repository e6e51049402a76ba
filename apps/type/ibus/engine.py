"""An input method engine: a text field of an application, as IBus shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from dbus_fast import Message, Variant

from edgedec.apps.type.ibus import messages
from edgedec.apps.type.ibus.compose import Compose
from edgedec.apps.type.ibus.connection import Connection
from edgedec.apps.type.ibus.keys import is_modifier, key_of
from edgedec.apps.type.ibus.panel_menu import properties_of
from edgedec.apps.type.menu import Menu
from edgedec.apps.type.suggestions import Suggestions
from edgedec.apps.type.text_place import Application, FieldKind, Key, Rectangle
from edgedec.apps.type.tracked_text import TrackedText

_ECHO_S = 0.1
"""After a key, how long resets and new places of the caret are that key's in any case."""

_LATE_S = 2.0
"""How long after a key a busy application may still reset or report for it."""

_NEAR = 3
"""How far a caret may go by itself on its line. Units: heights of the caret."""

_KINDS = {
    2: FieldKind.NUMBER, 3: FieldKind.NUMBER, 4: FieldKind.NUMBER, 5: FieldKind.ADDRESS,
    6: FieldKind.ADDRESS, 8: FieldKind.SECRET, 9: FieldKind.SECRET, 10: FieldKind.TERMINAL,
}  # fmt: skip
"""IBusInputPurpose -> kind; all others are prose."""

_NO_CARET = "gtk4-im"
"""Module that reports its caret within a widget as if it were a place on the screen.

Source: `_set_cursor_location_internal` in `client/gtk2/ibusimcontext.c` of ibus 1.5.27.
"""

_QT = "QIBusInputContext"
"""Qt's clients, which report places in pixels of Qt's. Source: qibusplatforminputcontext.cpp."""

_TALLEST = 200
"""Of carets that are believed. Units: pixels."""

_PRIVATE = 1 << 11
"""IBusInputHints: an application's private window."""


class Engine:
    """The field that has the focus, a `TextPlace`. IBus calls a method of its name for each event.

    Args:
        bus: To IBus.
        path: Of this object.
        find_application: Returns the program in front.
    """

    def __init__(
        self,
        bus: Connection,
        path: str,
        suggestions: Suggestions,
        menu: Menu,
        find_application: Callable[[], Application],
    ) -> None:
        self._bus, self._path, self._suggestions, self._menu = bus, path, suggestions, menu
        self._find_application = find_application
        self._text = TrackedText()
        self._compose = Compose()
        self._swallowed: set[int] = set()  # codes of keys whose release is ours, too
        self._pressed_s = float("-inf")
        self._has_moved = False  # the caret, since the latest key
        self._n_resets = 0  # that keys may still bring
        self._written = ""  # by the latest key, if nothing has happened since
        self._is_selected = self._is_private = self._is_misled = False
        self._purpose = FieldKind.PROSE
        self._scale = 1.0
        self.application = ""
        self.caret: Rectangle | None = None

    @property
    def before(self) -> str:
        return self._text.before

    @property
    def after(self) -> str:
        return self._text.after

    @property
    def kind(self) -> FieldKind:
        return FieldKind.SECRET if self._is_private else self._purpose

    def insert(self, text: str) -> None:
        self._text.type(text, time.monotonic())
        self._written = text
        self.send("CommitText", "v", messages.text(text))

    def send(self, name: str, signature: str = "", *body: Any) -> None:
        """Sends a signal to the application, or to IBus' panel."""
        signal = Message.new_signal(self._path, messages.ENGINE, name, signature, list(body))
        self._bus.send(signal)

    def process_key_event(self, symbol: int, code: int, state: int) -> bool:
        """Handles a key; returns False if it is the application's."""
        if state & messages.RELEASE:
            is_ours = code in self._swallowed
            self._swallowed.discard(code)
            return is_ours
        if is_modifier(symbol):
            return False
        self._pressed_s, self._has_moved = time.monotonic(), False
        self._n_resets += 1
        is_ours = self._press(symbol, code, state)
        if is_ours:
            self._swallowed.add(code)
        return is_ours

    def _press(self, symbol: int, code: int, state: int) -> bool:
        self._written = ""
        key = key_of(symbol, code, state)
        composed = self._compose.feed(symbol) if not state & messages.MODIFIERS else None
        if composed is not None:
            self._suggestions.hide()
            if composed:
                self.insert(composed)
                self._suggestions.typed(composed)
            return True
        if self._suggestions.takes(key):
            return True
        self._bus.after_answer(partial(self._follow, key))  # for which the application waits
        return False

    def _follow(self, key: Key) -> None:
        """Does to the own copy what the application will do with a key."""
        now_s, is_plain = time.monotonic(), not (key.is_control or key.is_alt)
        if self._is_selected and (key.text or key.name):
            self._is_selected = False
            self._text.lose()  # the key replaces what is selected
        if key.text:
            self._text.type(key.text, now_s)
            self._written = key.text
            self._suggestions.typed(key.text)
            return
        self._suggestions.hide()
        if key.name == "BackSpace" and is_plain:
            self._text.erase(now_s)
        elif key.name == "Return" and is_plain:
            self._text.type("\n", now_s)
        else:
            self._text.lose()

    def set_surrounding_text(self, text: Variant, cursor: int, anchor: int) -> None:
        """The application reports its text. Units: characters."""
        self._is_selected = cursor != anchor
        is_news = self._text.report(text.value[2], cursor, time.monotonic())
        if self._is_selected or is_news:
            self._suggestions.hide()
            if not self._is_selected and self._is_writing and self.before.endswith(self._written):
                self._suggestions.ask()  # an older text was asked about

    @property
    def _is_writing(self) -> bool:
        """What happens now may be for the latest key, which wrote something."""
        return bool(self._written) and time.monotonic() - self._pressed_s < _LATE_S

    def set_cursor_location(self, x: int, y: int, width: int, height: int) -> None:
        """The caret is at another place of the screen."""
        x, y, width, height = (round(self._scale * part) for part in (x, y, width, height))
        is_known = not self._is_misled and height <= _TALLEST
        caret = Rectangle(x, y, width, height) if is_known else None
        if caret == self.caret:
            return
        is_near = _is_near(self.caret, caret)
        self.caret = caret
        is_echo = not self._has_moved or time.monotonic() - self._pressed_s < _ECHO_S
        is_by_key = is_near or is_echo or self._is_writing
        self._has_moved = True
        if is_by_key:
            self._suggestions.moved()
        else:  # a click, or the text was scrolled
            self._suggestions.hide()

    def set_content_type(self, purpose: int, hints: int) -> None:
        """The application says what the field is for."""
        kind = FieldKind.SECRET if hints & _PRIVATE else _KINDS.get(purpose, FieldKind.PROSE)
        if kind is not self._purpose:
            self._purpose = kind
            self._suggestions.hide()

    def focus_in(self, *client: str) -> None:
        """Somebody turns to the field. client: its path and its program, if IBus says so."""
        self.caret = None
        self._is_selected, self._n_resets, self._written = False, 0, ""
        self._text.lose()
        self._compose.reset()
        module, _, program = client[1].partition(":") if len(client) > 1 else ("", "", "")
        self._is_misled = module == _NO_CARET
        front = self._find_application()
        self._is_private = front.is_private
        self._scale = front.qt_scale if module == _QT else 1.0
        self.application = front.name or program.lower()
        self._suggestions.enter(self)
        self.send("RequireSurroundingText")
        self._send_menu()

    def focus_out(self, *client: str) -> None:
        """Somebody left the field."""
        self._text.lose()
        self._compose.reset()
        self._suggestions.leave(self)

    def reset(self) -> None:
        """The application moved the cursor by itself; Firefox says so after each key, too."""
        passed_s = time.monotonic() - self._pressed_s
        is_by_key = self._n_resets > 0 and passed_s < _LATE_S
        self._n_resets = max(self._n_resets - 1, 0) if is_by_key else 0
        if not is_by_key and passed_s > _ECHO_S:
            self._compose.reset()
            self._text.lose()
            self._suggestions.hide()

    def clicked(self) -> None:
        """Somebody clicked anywhere: the cursor may be elsewhere, as a reset for it would say."""
        self._n_resets, self._written = 0, ""
        self._compose.reset()
        self._text.lose()
        self._suggestions.hide()

    def enable(self) -> None:
        """The engine is chosen while the field has the focus."""
        self.send("RequireSurroundingText")
        self._send_menu()

    def property_activate(self, key: str, state: int) -> None:
        """Somebody chose a line of the menu."""
        self._menu.choose(key, self.application)
        self._send_menu()

    def _send_menu(self) -> None:
        items = self._menu.items(self.application)
        self.send("RegisterProperties", "v", properties_of(items))

    focus_in_id, focus_out_id, disable = focus_in, focus_out, focus_out


def _is_near(old: Rectangle | None, new: Rectangle | None) -> bool:
    """Says whether a caret went from one place to the other by a few keys on one line."""
    if old is None or new is None:
        return False
    tallest = max(old.height, new.height)
    return abs(new.y - old.y) <= tallest // 2 and abs(new.x - old.x) <= _NEAR * tallest
