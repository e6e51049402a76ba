"""What a person sees first: how to get a model, and how to begin to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QToolButton, QVBoxLayout, QWidget

from edgedec.apps.desktop.icons import icon_pixmap
from edgedec.apps.desktop.model_chooser import ModelChooser
from edgedec.apps.desktop.model_jobs import ModelJobs

_ICON = 64
_N_RECENT = 5
_ABOUT = "Text and code, with suggestions from a model on this machine. Nothing leaves the machine."
_GET = (
    "Suggestions need a model. These fit this machine’s memory. "
    "<b>Get and use</b> downloads the selected one, prepares it once, and turns suggestions on."
)

Start = tuple[str, str, Callable[[], object]]
"""A text, its keys, and what is done."""


class WelcomePage(QWidget):
    """A tab beside the documents. chosen: with a bundle; opened: with a recent file."""

    chosen = Signal(str)
    opened = Signal(str)

    def __init__(
        self, jobs: ModelJobs, starts: Sequence[Start], recent: Sequence[str], parent: QWidget
    ) -> None:
        super().__init__(parent)
        self.setBackgroundRole(self.palette().ColorRole.Base)
        self.setAutoFillBackground(True)
        self.chooser = ModelChooser(jobs, has_large=False)
        self.chooser.chosen.connect(self.chosen)
        self._starts, self._recent = starts, recent
        columns = QHBoxLayout()
        columns.setSpacing(24)
        columns.addLayout(self._start_column())
        columns.addLayout(self._model_column(), 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(30, 26, 30, 20)
        layout.setSpacing(24)
        layout.addLayout(self._head())
        layout.addLayout(columns, 1)

    def _head(self) -> QHBoxLayout:
        icon, about = QLabel(), QLabel(f"<h1 style='margin:0'>edgedec</h1>{_ABOUT}")
        ratio = self.devicePixelRatioF()
        pixmap = icon_pixmap(round(_ICON * ratio))
        pixmap.setDevicePixelRatio(ratio)
        icon.setPixmap(pixmap)
        head = QHBoxLayout()
        head.setSpacing(18)
        head.addWidget(icon)
        head.addWidget(about, 1)
        return head

    def _start_column(self) -> QVBoxLayout:
        column = QVBoxLayout()
        column.setSpacing(4)
        column.addWidget(QLabel("<h3 style='margin:0'>Start</h3>"))
        for text, keys, action in self._starts:
            column.addWidget(_link(text, keys, action))
        if self._recent:
            column.addSpacing(14)
            column.addWidget(QLabel("<h3 style='margin:0'>Recent</h3>"))
        for path in self._recent[:_N_RECENT]:
            link = _link(Path(path).name, "", partial(self.opened.emit, path))
            link.setToolTip(path)
            column.addWidget(link)
        column.addStretch(1)
        return column

    def _model_column(self) -> QVBoxLayout:
        about = QLabel(_GET)
        about.setWordWrap(True)
        column = QVBoxLayout()
        column.setSpacing(8)
        column.addWidget(QLabel("<h3 style='margin:0'>Get a model</h3>"))
        column.addWidget(about)
        column.addWidget(self.chooser, 1)
        return column


def _link(text: str, keys: str, action: Callable[[], object]) -> QToolButton:
    button = QToolButton(autoRaise=True)
    button.setText(f"{text}   {keys}".rstrip())
    button.setCursor(Qt.CursorShape.PointingHandCursor)
    button.clicked.connect(lambda: action())
    return button
