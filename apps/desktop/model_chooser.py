"""What chooses a model: the list, one button from download to use, and the progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import (
    QFileDialog,
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from edgedec.apps.desktop.model_job import DOWNLOAD
from edgedec.apps.desktop.model_jobs import ModelJobs
from edgedec.apps.desktop.model_list import ModelList, ModelRow, rows_of


class ModelChooser(QWidget):
    """Lists models, and gets the selected one ready. chosen: with a bundle that is ready."""

    chosen = Signal(str)

    def __init__(self, jobs: ModelJobs, has_large: bool, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._jobs, self._shown = jobs, ""
        self.list = ModelList(has_large)
        self.use = QPushButton("Get and use")
        self.gguf = QPushButton("Open a GGUF file…")
        self.folder = QPushButton("Use a bundle…")
        self.bar, self.cancel, self.status = QProgressBar(), QPushButton("Cancel"), QLabel()
        self.status.setWordWrap(True)
        self._lay_out()
        self.list.itemSelectionChanged.connect(self._enable)
        self.list.used.connect(self._use)
        self.use.clicked.connect(lambda: self._use(self.list.selected()))
        self.gguf.clicked.connect(self._open_gguf)
        self.folder.clicked.connect(self._open_bundle)
        self.cancel.clicked.connect(jobs.cancel)
        jobs.listed.connect(self._on_listed)
        jobs.began.connect(self._on_began)
        jobs.progressed.connect(self._on_progress)
        jobs.ended.connect(self._on_ended)
        self._enable()

    def get(self, name: str) -> None:
        """Gets a model of the catalogue or the hub, or that of a file, and uses it."""
        self._jobs.get(name)

    def _lay_out(self) -> None:
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.list, 1)
        self.use.setDefault(True)
        layout.addLayout(_row(self.use, self.gguf, self.folder))
        layout.addLayout(_row(self.bar, self.cancel))
        layout.addWidget(self.status)

    def _use(self, row: ModelRow | None) -> None:
        if row is None:
            return
        if row.is_ready:
            self._choose(row.key)
        else:
            self.get(row.key)

    def _open_gguf(self) -> None:
        name, _ = QFileDialog.getOpenFileName(self, "A model file", "", "Model files (*.gguf)")
        self.get(name)

    def _open_bundle(self) -> None:
        if folder := QFileDialog.getExistingDirectory(self, "A bundle's folder"):
            self._choose(folder)

    def _choose(self, bundle: str) -> None:
        """Has a bundle used; what was said of an earlier one is over."""
        self.status.clear()
        self.chosen.emit(bundle)

    def _enable(self) -> None:
        is_busy, row = self._jobs.is_busy, self.list.selected()
        is_ready = row is not None and row.is_ready
        self.use.setText("Use" if is_ready else "Get and use")
        self.use.setEnabled(row is not None and (is_ready or not is_busy))
        self.gguf.setEnabled(not is_busy)
        self.bar.setVisible(is_busy)
        self.cancel.setVisible(is_busy)

    def _on_listed(self, table: dict[str, Any]) -> None:
        self.list.show_rows(rows_of(table))

    def _on_began(self, name: str) -> None:
        self._shown = Path(name).name
        self._on_progress("", -1)
        self._enable()

    def _on_progress(self, phase: str, per_mille: int) -> None:
        doing = "Downloading" if phase == DOWNLOAD else "Preparing"
        self.status.setText(f"{doing} {self._shown} …")
        self.bar.setRange(0, 0 if per_mille < 0 else 1000)
        self.bar.setValue(max(per_mille, 0))

    def _on_ended(self, reason: str) -> None:
        self.status.setText(reason or f"{self._shown} is ready.")
        self._enable()


def _row(*widgets: QWidget) -> QHBoxLayout:
    row = QHBoxLayout()
    for widget in widgets:
        row.addWidget(widget, 1 if isinstance(widget, QProgressBar) else 0)
    if not any(isinstance(widget, QProgressBar) for widget in widgets):
        row.addStretch(1)
    return row
