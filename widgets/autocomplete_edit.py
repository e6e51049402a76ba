"""A text field that shows what the model would write next, and takes it on a key."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import count

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QInputMethodEvent,
    QKeyEvent,
    QMouseEvent,
)
from PySide6.QtWidgets import QPlainTextEdit, QTextEdit, QWidget

from edgedec.autocomplete import Offer
from edgedec.widgets.ghost_text import GhostText, Part
from edgedec.widgets.next_edit import NextEdit
from edgedec.widgets.suggester import Suggester
from edgedec.widgets.units import document_near, n_units

_WORD = re.compile(r"\s*(?:\w+|[^\w\s]+)|\s+")
_NAMES = count(1)

_NO_MODIFIER = Qt.KeyboardModifier.NoModifier
_KEYPAD = Qt.KeyboardModifier.KeypadModifier  # which arrows have on some systems
_CTRL, _ALT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.AltModifier


class Trigger(StrEnum):
    """What makes a text field ask for a suggestion."""

    TYPING = "typing"
    MOVING = "moving"
    ON_REQUEST = "asked"


class AutocompleteEdit(QPlainTextEdit):
    """A plain text field with ghost text at its cursor, or else the next edit.

    Tab takes all of it, Ctrl+Right a word, Esc none, Alt+] shows the next alternative and Alt+[ the
    one before, Ctrl+Space asks. What is on offer is no part of the document until it is taken.
    Where nothing is on offer at the cursor, or no more, the next edit is shown: Tab jumps there,
    and then takes it. Esc dismisses it, Alt+] shows another.

    next_edit: what is known of that.
    name: tells the suggester its documents apart. trigger: what makes it ask, besides Ctrl+Space:
    typing; also moving the cursor; nothing. delay_ms: how long the hand rests before it asks.
    colour: of a piece on offer, by its origin: "target", or the drafter that it is from.
    is_offering: there are suggestions at all. taken: with each text that was taken. dismissed: an
    offer was refused. alone: an alternative was asked for, and there is none.
    """

    taken = Signal(str)
    dismissed = Signal()
    alone = Signal()

    def __init__(self, suggester: Suggester, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._suggester = suggester
        self.name = f"document {next(_NAMES)}"
        self.trigger = Trigger.TYPING
        self.delay_ms = 0
        self.is_offering = True
        self.colour: Callable[[str], QColor] = lambda origin: (
            self.palette().placeholderText().color()
        )
        self.next_edit = NextEdit(self, suggester, self._strike)
        self._marks: Sequence[QTextEdit.ExtraSelection] = ()
        self._struck: Sequence[QTextEdit.ExtraSelection] = ()
        self._ghost = GhostText(self.document())
        self._others: list[list[Part]] = []  # alternatives, what was on offer first among them
        self._i_other = 0
        self._seen = self._state
        self._missed: tuple[int, int, int] | None = None  # asked for while there was no model
        self._waiting = QTimer(self, singleShot=True)
        self._waiting.timeout.connect(self._ask)
        self.textChanged.connect(self._on_text)
        self.cursorPositionChanged.connect(self._on_cursor)
        self.selectionChanged.connect(self._on_cursor)

    @property
    def offered(self) -> str:
        """What is on offer; empty where there is nothing."""
        return "" if self._ghost.shown is None else self._ghost.shown.text

    @property
    def offers(self) -> bool:
        """There is something to take, at the cursor or elsewhere."""
        return bool(self.offered) or self.next_edit.shown is not None

    def take(self, text: str) -> None:
        """Writes the beginning of what is on offer, a step of undo of its own; offers the rest."""
        cursor = self.textCursor()
        cursor.beginEditBlock()
        cursor.insertText(text)
        cursor.endEditBlock()
        self.ensureCursorVisible()
        self.taken.emit(text)

    def setExtraSelections(self, marks: Sequence[QTextEdit.ExtraSelection]) -> None:  # noqa: N802
        """Marks places, besides those that are struck."""
        self._marks = marks
        super().setExtraSelections([*marks, *self._struck])

    def refuse(self) -> None:
        """Takes away what is on offer; the next key may bring another."""
        self._drop()
        self._suggester.pause()
        self.dismissed.emit()

    def ask(self) -> None:
        """Asks for a suggestion at the cursor, whatever the trigger is."""
        self._drop()
        self._ask()

    def be_seen(self) -> None:
        """Lets other text fields of the same suggester be offered what is known from this one.

        To be called when a model came, too: what was typed before is asked for then.
        """
        self.next_edit.see(self.name)
        if reach := self._suggester.reach:
            cursor = self.textCursor().position()
            self._suggester.see(document_near(self.document(), cursor, reach, self.name))
            if self._missed == self._state:
                self._ask()

    def show_other(self, step: int) -> None:
        """Shows the next of the alternatives (1), or the one before (-1), once they are there."""
        if self._ghost.shown is None:
            return
        if self._others:
            self._turn_to_other(step)
        else:
            self._suggester.ask_others(lambda offers: self._take_in_others(offers, step))

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802
        """Handles the keys of this class, and leaves the others to Qt."""
        if self._handle(event.key(), event.modifiers() & ~_KEYPAD):
            event.accept()
        else:
            super().keyPressEvent(event)

    def inputMethodEvent(self, event: QInputMethodEvent) -> None:  # noqa: N802
        """Makes way for what an input method composes, at the same place."""
        if event.preeditString():
            self._drop()
            self._suggester.pause()
        super().inputMethodEvent(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:  # noqa: N802
        """Takes the offer away: what is behind it moves. An edit comes back."""
        edit = self.next_edit.hide()
        self._drop()
        super().mousePressEvent(event)
        if edit is not None:
            self.next_edit.show(edit)

    def focusInEvent(self, event: QFocusEvent) -> None:  # noqa: N802
        """Asks where the cursor is, if that is wanted."""
        super().focusInEvent(event)
        if self.trigger == Trigger.MOVING:
            self._ask_soon()

    def focusOutEvent(self, event: QFocusEvent) -> None:  # noqa: N802
        """Offers nothing, and computes nothing, where nobody writes."""
        self._drop()
        self._suggester.pause()
        super().focusOutEvent(event)

    def _handle(self, key: int, modifiers: Qt.KeyboardModifier) -> bool:
        if key == Qt.Key.Key_Space and modifiers == _CTRL:
            self.ask()
            return True
        if not self.offered:
            return self.next_edit.shown is not None and self._handle_edit(key, modifiers)
        if key == Qt.Key.Key_Tab and modifiers == _NO_MODIFIER:
            self.take(self.offered)
        elif key == Qt.Key.Key_Right and modifiers == _CTRL:
            self.take(_first_word(self.offered))
        elif key == Qt.Key.Key_Escape and modifiers == _NO_MODIFIER:
            self.refuse()
            self.next_edit.ask(self.name)
        elif key in (Qt.Key.Key_BracketRight, Qt.Key.Key_BracketLeft) and modifiers == _ALT:
            self.show_other(1 if key == Qt.Key.Key_BracketRight else -1)
        else:
            return False
        return True

    def _handle_edit(self, key: int, modifiers: Qt.KeyboardModifier) -> bool:
        if key == Qt.Key.Key_Tab and modifiers == _NO_MODIFIER:
            self.next_edit.jump_or_take(self.name)
        elif key == Qt.Key.Key_Escape and modifiers == _NO_MODIFIER:
            self.next_edit.dismiss()
        elif key == Qt.Key.Key_BracketRight and modifiers == _ALT:
            self.next_edit.turn(self.name)
        else:
            return False
        return True

    def _strike(self, marks: Sequence[QTextEdit.ExtraSelection]) -> None:
        self._struck = marks
        super().setExtraSelections([*self._marks, *marks])

    def _on_text(self) -> None:
        self.next_edit.note_change()
        if self.next_edit.is_taking:
            self._drop()
            return
        ghost, typed = self._ghost.shown, self._ghost.typed_since()
        is_other = self._i_other > 0
        self._drop()
        if ghost is not None and typed and ghost.text.startswith(typed):
            is_here = self.textCursor().position() == ghost.position + n_units(typed)
            rest = _without(ghost.parts, len(typed))
            if is_here and rest and not self.textCursor().hasSelection():
                self._show(rest)
                if is_other:  # the model would go on with what it likes better
                    self._suggester.pause()
                    self._i_other = 1
                else:
                    self._ask()
                return
        if self.trigger != Trigger.ON_REQUEST:
            self._ask_soon()
        else:
            self._suggester.pause()

    def _on_cursor(self) -> None:
        revision, *_ = self._seen
        if self.document().revision() != revision or self._state == self._seen:
            return  # the text has changed, of which Qt tells next; or nothing has
        if self.next_edit.shown is not None:
            self._seen = self._state
            self.next_edit.note_move(self.name)
            return
        self.next_edit.note_move(self.name)
        self._drop()
        if self.trigger == Trigger.MOVING:
            self._ask_soon()
        else:
            self._suggester.pause()

    def _ask_soon(self) -> None:
        if self.delay_ms == 0:
            self._ask()
            return
        self._suggester.pause()
        self._waiting.start(self.delay_ms)

    def _ask(self) -> None:
        self._waiting.stop()
        self._seen = self._state
        reach, cursor = self._suggester.reach, self.textCursor()
        self._missed = None if reach else self._state
        is_place = (
            self.is_offering
            and self.hasFocus()
            and not (cursor.hasSelection() or self.isReadOnly())
        )
        if not (reach and is_place) or self._is_composing:
            self._suggester.pause()
            return
        near = document_near(self.document(), cursor.position(), reach, self.name)
        self._suggester.ask(near, self._receive)

    def _receive(self, offer: Offer | None) -> None:
        if offer is None:
            if not self.offered:
                self.next_edit.ask(self.name)
            return
        self.next_edit.hide()
        self._others, self._i_other = [], 0
        self._show(self._painted(offer))

    def _take_in_others(self, offers: list[Offer], step: int) -> None:
        if (ghost := self._ghost.shown) is not None:
            others = [self._painted(offer) for offer in offers if offer.text != ghost.text]
            self._others, self._i_other = [list(ghost.parts), *others], 0
            if others:
                self._turn_to_other(step)
            else:
                self.alone.emit()

    def _turn_to_other(self, step: int) -> None:
        i = (self._i_other + step) % len(self._others)
        others = self._others
        self._show(others[i])
        self._others, self._i_other = others, i

    def _painted(self, offer: Offer) -> list[Part]:
        return [(text, self.colour(origin)) for text, origin in offer.parts]

    def _show(self, parts: list[Part]) -> None:
        self._ghost.show(self.textCursor().position(), parts)
        self._seen = self._state
        self._reveal()

    def _reveal(self) -> None:
        """Scrolls on as far as lines on offer are below what is seen."""
        line = self.fontMetrics().lineSpacing()
        bottom = self.cursorRect().bottom() + line * self.offered.count("\n")
        if (n_hidden := -((self.viewport().height() - bottom) // line)) > 0:
            bar = self.verticalScrollBar()
            bar.setValue(bar.value() + n_hidden)

    def _drop(self) -> None:
        self._waiting.stop()
        self._others, self._i_other = [], 0
        self._ghost.hide()
        self.next_edit.hide()
        self._seen = self._state

    @property
    def _state(self) -> tuple[int, int, int]:
        """The revision of the document, and where the cursor and the selection are."""
        cursor = self.textCursor()
        return self.document().revision(), cursor.position(), cursor.anchor()

    @property
    def _is_composing(self) -> bool:
        """An input method shows something at the cursor."""
        line = self.textCursor().block().layout()
        return self._ghost.shown is None and bool(line.preeditAreaText())


def _first_word(text: str) -> str:
    """Returns the first word of ``text``, with what is blank before it."""
    match = _WORD.match(text)
    return text if match is None else match[0]


def _without(parts: tuple[Part, ...], n: int) -> list[Part]:
    """Returns ``parts`` without their first ``n`` characters."""
    kept = []
    for text, colour in parts:
        if rest := text[n:]:
            kept.append((rest, colour))
        n = max(0, n - len(text))
    return kept
