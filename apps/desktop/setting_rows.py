"""What each setting is called, what it does, and how it is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from PySide6.QtGui import QFontDatabase
from PySide6.QtWidgets import QCheckBox, QComboBox, QLineEdit, QSpinBox, QWidget

from edgedec.apps.desktop.settings import FONT_SIZES, THEMES
from edgedec.apps.desktop.spelling.worker import languages
from edgedec.autocomplete.edits.formats import FORMATS
from edgedec.system.processors import processors
from edgedec.widgets import Trigger

Change = Callable[[Any], None]
Show = Callable[[Any], None]

_SYSTEM_FONT = "the system’s"


class Control(Protocol):
    """How a setting is changed."""

    def make(self, change: Change) -> tuple[QWidget, Show]:
        """Returns a widget that calls ``change`` with each new value, and what shows a value."""


@dataclass(frozen=True)
class Number:
    """A whole number. usual: what 0 is called where that means None."""

    least: int
    most: int
    unit: str = ""
    usual: str = ""

    def make(self, change: Change) -> tuple[QWidget, Show]:
        box = QSpinBox()
        box.setRange(self.least, self.most)
        box.setSuffix(self.unit)
        box.setSpecialValueText(self.usual)
        box.valueChanged.connect(lambda value: change(None if self.usual and not value else value))
        return box, lambda value: box.setValue(value or 0)


@dataclass(frozen=True)
class Share:
    """A share between 0 and 1, shown in percent."""

    def make(self, change: Change) -> tuple[QWidget, Show]:
        box = QSpinBox()
        box.setRange(0, 100)
        box.setSingleStep(5)
        box.setSuffix(" %")
        box.valueChanged.connect(lambda value: change(value / 100))
        return box, lambda value: box.setValue(round(100 * value))


@dataclass(frozen=True)
class Flag:
    """On or off."""

    def make(self, change: Change) -> tuple[QWidget, Show]:
        box = QCheckBox()
        box.toggled.connect(change)
        return box, box.setChecked


@dataclass(frozen=True)
class Words:
    """Some words. hint: what they may be."""

    hint: str

    def make(self, change: Change) -> tuple[QWidget, Show]:
        line = QLineEdit()
        line.setPlaceholderText(self.hint)
        line.editingFinished.connect(lambda: change(line.text()))
        return line, line.setText


@dataclass(frozen=True)
class ChoiceField:
    """One of some values, by their texts."""

    values: Callable[[], Mapping[str, object]]

    def make(self, change: Change) -> tuple[QWidget, Show]:
        box, values = QComboBox(), dict(self.values())
        box.addItems(list(values))
        box.currentTextChanged.connect(lambda text: change(values[text]))
        return box, lambda value: box.setCurrentIndex(list(values.values()).index(value))


@dataclass(frozen=True)
class SettingRow:
    """A setting. name: of a field of `EditorSettings`, or of its `typing`."""

    name: str
    label: str
    about: str
    control: Control


def _triggers() -> Mapping[str, object]:
    return {
        "while I type": Trigger.TYPING,
        "also when I move the cursor": Trigger.MOVING,
        "only on Ctrl+Space": Trigger.ON_REQUEST,
    }


def _languages() -> Mapping[str, object]:
    return {"no spelling": "", **{name: name for name in languages()}}


def _edit_formats() -> Mapping[str, object]:
    return {"no edits": "", **{name: name for name in FORMATS}}


def _families(is_fixed: bool) -> Mapping[str, object]:
    names = QFontDatabase.families()
    chosen = (name for name in names if not is_fixed or QFontDatabase.isFixedPitch(name))
    return {_SYSTEM_FONT: "", **{name: name for name in chosen}}


PAGES = {
    "Suggestions": (
        SettingRow("trigger", "Suggest", "When a suggestion is computed.", ChoiceField(_triggers)),
        SettingRow(
            "delay_ms",
            "Wait before suggesting",
            "Pause in typing before the model starts. 0 gives the fastest suggestions.",
            Number(0, 10_000, " ms"),
        ),
        SettingRow(
            "min_probability",
            "Required confidence",
            "Suggestions that the model finds less likely are not shown. Lower it to see more.",
            Share(),
        ),
        SettingRow(
            "max_new_tokens",
            "Maximum length",
            "Longer suggestions take more computing. A token is about three quarters of a word.",
            Number(1, 512, " tokens"),
        ),
        SettingRow(
            "is_block",
            "Several lines at once",
            "Off: a suggestion ends with its line.",
            Flag(),
        ),
        SettingRow(
            "edits",
            "Next edit",
            "How the model is asked for it. “instruction” is for chat models.",
            ChoiceField(_edit_formats),
        ),
        SettingRow(
            "silent",
            "No suggestions in",
            "Endings of files that get none.",
            Words("md txt"),
        ),
        SettingRow(
            "has_colours",
            "Colour by drafter",
            "Shows which method drafted each part of a suggestion.",
            Flag(),
        ),
    ),
    "Model": (
        SettingRow(
            "threads",
            "Threads",
            "Processor cores that the model may use. Fewer leave more for other programs.",
            Number(0, processors(), usual="one per core"),
        ),
        SettingRow(
            "context",
            "Context",
            "Maximum tokens the model keeps in memory. Fewer need less memory.",
            Number(0, 131_072, " tokens", usual="all that the model has"),
        ),
        SettingRow(
            "max_idle_cpu",
            "Computing ahead",
            "Share of time spent on the line after the suggestion. 0 turns it off.",
            Share(),
        ),
        SettingRow(
            "rests_on_battery",
            "Save battery",
            "Computes nothing ahead on battery power.",
            Flag(),
        ),
    ),
    "Text": (
        SettingRow(
            "theme",
            "Colours",
            "“system” follows the desktop’s light or dark setting.",
            ChoiceField(lambda: {name: name for name in THEMES}),
        ),
        SettingRow(
            "code_font",
            "Font of code",
            "A font of fixed width.",
            ChoiceField(lambda: _families(True)),
        ),
        SettingRow(
            "prose_font", "Font of prose", "For text files.", ChoiceField(lambda: _families(False))
        ),
        SettingRow(
            "font_size", "Font size", "Ctrl++ and Ctrl+- change it too.", Number(*FONT_SIZES, " pt")
        ),
        SettingRow(
            "tab_width",
            "Width of a tab",
            "Also the number of spaces that Tab writes.",
            Number(1, 16, " columns"),
        ),
        SettingRow(
            "has_tabs",
            "Indent with tabs",
            "Only in files without indentation. Others go on as they are.",
            Flag(),
        ),
        SettingRow(
            "spelling",
            "Spelling",
            "Language of prose. Unknown words get a wavy line.",
            ChoiceField(_languages),
        ),
    ),
    "Privacy": (
        SettingRow(
            "learns",
            "Learn from what I write",
            "Keeps accepted phrases in a folder that only you can read, on this machine.",
            Flag(),
        ),
        SettingRow(
            "keeps_session",
            "Remember what the model read",
            "The next start is faster. The text is kept in a folder that only you can read.",
            Flag(),
        ),
        SettingRow(
            "adapts",
            "Improve drafts while I pause",
            "Keeps what you write in a file that only you can read, and trains the model’s draft "
            "head with it. Needs torch.",
            Flag(),
        ),
    ),
}
"""The settings, page by page."""
