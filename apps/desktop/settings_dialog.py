"""The settings, with effect while they are changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QGridLayout,
    QLabel,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from edgedec.apps.desktop.setting_rows import PAGES, SettingRow, Show
from edgedec.apps.desktop.settings import EditorSettings

_Button = QDialogButtonBox.StandardButton


class SettingsDialog(QDialog):
    """Shows settings to be changed, each with what it does.

    changed: with what makes new settings of those that hold, after each change.
    """

    changed = Signal(object)

    def __init__(self, settings: EditorSettings, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Settings")
        self.resize(740, 0)
        self._shows: dict[str, tuple[QWidget, Show]] = {}
        self.tabs = QTabWidget()
        for title, rows in PAGES.items():
            self.tabs.addTab(self._page(rows), title)
        buttons = QDialogButtonBox(_Button.RestoreDefaults | _Button.Close)
        self.defaults = buttons.button(_Button.RestoreDefaults)
        self.defaults.setText("Reset all settings")
        self.defaults.clicked.connect(self._reset)
        buttons.rejected.connect(self.close)
        layout = QVBoxLayout(self)
        layout.addWidget(self.tabs)
        layout.addWidget(buttons)
        self._fill(settings)

    def _page(self, rows: Sequence[SettingRow]) -> QWidget:
        page = QWidget()
        grid = QGridLayout(page)
        grid.setColumnStretch(1, 1)
        grid.setHorizontalSpacing(18)
        grid.setVerticalSpacing(14)
        for i, row in enumerate(rows):
            box, show = row.control.make(partial(self._set, row.name))
            box.setObjectName(row.name)
            self._shows[row.name] = box, show
            grid.addWidget(QLabel(row.label), i, 0, Qt.AlignmentFlag.AlignTop)
            grid.addLayout(_explained(box, row.about), i, 1)
        grid.setRowStretch(len(rows), 1)
        return page

    def _fill(self, settings: EditorSettings) -> None:
        for name, (box, show) in self._shows.items():
            holder = settings if hasattr(settings, name) else settings.typing
            with QSignalBlocker(box):
                show(getattr(holder, name))

    def _set(self, name: str, value: Any) -> None:
        self.changed.emit(partial(_with, name, value))

    def _reset(self) -> None:
        self._fill(EditorSettings())
        self.changed.emit(EditorSettings.reset)


def _explained(box: QWidget, about: str) -> QVBoxLayout:
    remark = QLabel(about)
    remark.setEnabled(False)  # in grey
    remark.setWordWrap(True)
    layout = QVBoxLayout()
    layout.setSpacing(2)
    layout.addWidget(box)
    layout.addWidget(remark)
    return layout


def _with(name: str, value: Any, settings: EditorSettings) -> EditorSettings:
    if hasattr(settings, name):
        return replace(settings, **{name: value})
    return replace(settings, typing=replace(settings.typing, **{name: value}))
