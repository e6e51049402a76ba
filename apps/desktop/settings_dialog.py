"""The settings, with effect while they are changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDialog,
    QDoubleSpinBox,
    QFormLayout,
    QSpinBox,
    QWidget,
)

from edgedec.apps.desktop.settings import FONT_SIZES, THEMES, EditorSettings
from edgedec.apps.desktop.spelling.worker import languages
from edgedec.system.processors import processors
from edgedec.widgets import Trigger

_TRIGGERS = {
    Trigger.TYPING: "while I type",
    Trigger.MOVING: "also where I move the cursor",
    Trigger.ASKED: "only on Ctrl+Space",
}

NO_SPELLING = "not looked at"


class SettingsDialog(QDialog):
    """Shows settings to be changed.

    changed: with what makes new settings of those that hold, after each change.
    """

    changed = Signal(object)

    def __init__(self, settings: EditorSettings, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Settings")
        self.form = QFormLayout(self)
        typing = settings.typing
        self._choice("Offer", "trigger", list(_TRIGGERS.values()), _TRIGGERS[settings.trigger])
        self._number("Rest before asking (ms)", "delay_ms", settings.delay_ms, 0, 10_000)
        self._number(
            "Threads (0: one for each core)", "threads", settings.threads or 0, 0, processors()
        )
        self._number("Most tokens computed", "max_new_tokens", typing.max_new_tokens, 1, 512)
        self._share("Least probability", "min_probability", typing.min_probability)
        self._share("Share of time computing ahead", "max_idle_cpu", typing.max_idle_cpu)
        self._flag("Not on battery", "rests_on_battery", typing.rests_on_battery)
        self._flag("Learn from what I write", "learns", settings.learns)
        self._flag("Remember what was read", "keeps_session", settings.keeps_session)
        self._flag("Several lines at once", "is_block", typing.is_block)
        self._flag("Colour text by its drafter", "has_colours", settings.has_colours)
        self._choice(
            "Spelling of prose",
            "spelling",
            [NO_SPELLING, *languages()],
            settings.spelling or NO_SPELLING,
        )
        self._choice("Theme", "theme", list(THEMES), settings.theme)
        self._number("Font size (points)", "font_size", settings.font_size, *FONT_SIZES)
        self._number("Width of a tab (columns)", "tab_width", settings.tab_width, 1, 16)

    def _number(self, label: str, name: str, value: int, least: int, most: int) -> None:
        box = QSpinBox()
        box.setRange(least, most)
        box.setValue(value)
        box.valueChanged.connect(self._setter(name))
        self._add(label, name, box)

    def _share(self, label: str, name: str, value: float) -> None:
        box = QDoubleSpinBox()
        box.setRange(0.0, 1.0)
        box.setSingleStep(0.05)
        box.setValue(value)
        box.valueChanged.connect(self._setter(name))
        self._add(label, name, box)

    def _flag(self, label: str, name: str, value: bool) -> None:
        box = QCheckBox()
        box.setChecked(value)
        box.toggled.connect(self._setter(name))
        self._add(label, name, box)

    def _choice(self, label: str, name: str, texts: list[str], value: str) -> None:
        box = QComboBox()
        box.addItems(texts)
        box.setCurrentText(value)
        box.currentTextChanged.connect(self._setter(name))
        self._add(label, name, box)

    def _add(self, label: str, name: str, box: QWidget) -> None:
        box.setObjectName(name)
        self.form.addRow(label, box)

    def _setter(self, name: str) -> Callable[[Any], None]:
        return lambda value: self._set(name, value)

    def _set(self, name: str, value: Any) -> None:
        if name == "threads":
            value = value or None
        elif name == "spelling":
            value = "" if value == NO_SPELLING else value
        elif name == "trigger":
            value = next(one for one, text in _TRIGGERS.items() if text == value)
        self.changed.emit(partial(_with, name, value))


def _with(name: str, value: Any, settings: EditorSettings) -> EditorSettings:
    if hasattr(settings, name):
        return replace(settings, **{name: value})
    return replace(settings, typing=replace(settings.typing, **{name: value}))
