"""The model manager: what can be fetched, what is here, and what is served."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from PySide6.QtCore import QProcess, QProcessEnvironment, Qt, Signal
from PySide6.QtWidgets import (
    QDialog,
    QFileDialog,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QProgressBar,
    QPushButton,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from edgedec.apps.console.terminal import bytes_text

_PERCENT = re.compile(r"(\d{1,3})%")
_KIND = Qt.ItemDataRole.UserRole
_MODEL, _BUNDLE = "model", "bundle"
_CLI = "from edgedec.apps.cli import main; main()"


class ModelsDialog(QDialog):
    """Lists models and bundles; pulls and exports in a process of its own, which can be ended.

    chosen: with the bundle that shall be served.
    """

    chosen = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Models")
        self.resize(720, 420)
        self.list = QTreeWidget()
        self.list.setHeaderLabels(["model or bundle", "state", "size", "from"])
        self.list.setColumnWidth(0, 300)
        self.hub_name = QLineEdit()
        self.hub_name.setPlaceholderText("org/name or org/name:FILE.gguf of the Hugging Face hub")
        self.use, self.export = QPushButton("Use"), QPushButton("Export")
        self.browse, self.pull = QPushButton("Use a folder…"), QPushButton("Pull")
        self.cancel = QPushButton("Cancel")
        self.bar, self.told = QProgressBar(), QLabel()
        self.told.setWordWrap(True)
        self._lay_out()
        self._job: QProcess | None = None
        self._listing: QProcess | None = None
        self._error = ""
        self.use.clicked.connect(self._use)
        self.list.itemDoubleClicked.connect(self._use)
        self.browse.clicked.connect(self._browse)
        self.export.clicked.connect(lambda: self.begin("export", self._selected(_MODEL)))
        self.pull.clicked.connect(lambda: self.begin("pull", self.hub_name.text().strip()))
        self.cancel.clicked.connect(self.end_job)
        self.list.itemSelectionChanged.connect(self._enable)
        self._enable()
        self.refresh()

    def refresh(self) -> None:
        """Lists again what is here; another process looks."""
        if self._listing is not None:
            return
        self._listing = _process(self, ["-c", _CLI, "models", "list", "--json"])
        self._listing.finished.connect(self._on_listed)
        self._listing.start()

    def begin(self, verb: str, name: str) -> None:
        """Begins to ``pull`` or ``export`` a model."""
        if self._job is not None or not name:
            return
        self._error = ""
        self._tell(f"{verb} {name} …")
        self.bar.setRange(0, 0)
        self._job = _process(self, ["-m", "edgedec.apps.desktop.model_job", verb, name])
        self._job.readyReadStandardOutput.connect(self._on_out)
        self._job.readyReadStandardError.connect(self._on_err)
        self._job.finished.connect(self._on_done)
        self._job.start()
        self._enable()

    def end_job(self) -> None:
        """Ends the job; what it had not finished is not there."""
        if self._job is not None:
            self._error = "cancelled; what was fetched goes on from there"
            self._job.terminate()

    def close_jobs(self) -> None:
        """Ends what runs, and waits for it: the window goes."""
        for process in (self._job, self._listing):
            if process is not None:
                process.blockSignals(True)
                process.terminate()
                if not process.waitForFinished(3000):
                    process.kill()
                    process.waitForFinished(1000)

    def _lay_out(self) -> None:
        layout = QVBoxLayout(self)
        layout.addWidget(self.list)
        layout.addLayout(_row(self.use, self.export, self.browse))
        layout.addLayout(_row(self.hub_name, self.pull))
        layout.addLayout(_row(self.bar, self.cancel))
        layout.addWidget(self.told)

    def _enable(self) -> None:
        is_busy = self._job is not None
        self.use.setEnabled(bool(self._selected(_BUNDLE)))
        self.export.setEnabled(not is_busy and bool(self._selected(_MODEL)))
        self.pull.setEnabled(not is_busy)
        self.cancel.setEnabled(is_busy)
        self.bar.setVisible(is_busy)

    def _selected(self, kind: str) -> str:
        items = self.list.selectedItems()
        return items[0].text(0) if items and items[0].data(0, _KIND) == kind else ""

    def _use(self) -> None:
        if bundle := self._selected(_BUNDLE):
            self.chosen.emit(bundle)

    def _browse(self) -> None:
        if folder := QFileDialog.getExistingDirectory(self, "A bundle's folder"):
            self.chosen.emit(folder)

    def _tell(self, text: str) -> None:
        self.told.setText(text)

    def _on_listed(self) -> None:
        listing, self._listing = self._listing, None
        assert listing is not None
        try:
            found = json.loads(bytes(listing.readAllStandardOutput().data()))
        except ValueError:
            self._tell(_last_line(bytes(listing.readAllStandardError().data())))
            return
        self.list.clear()
        for model in found["models"]:
            self._add(_MODEL, model["name"], model["state"], model["n_bytes"], model["from"])
        for bundle in found["bundles"]:
            self._add(_BUNDLE, bundle["path"], bundle["format"], bundle["n_bytes"], bundle["model"])

    def _add(self, kind: str, name: str, state: str, n_bytes: int, origin: str) -> None:
        item = QTreeWidgetItem([name, state, bytes_text(n_bytes) if n_bytes else "", origin])
        item.setData(0, _KIND, kind)
        self.list.addTopLevelItem(item)

    def _on_out(self) -> None:
        job = self._job
        while job is not None and job.canReadLine():
            said: dict[str, Any] = json.loads(bytes(job.readLine().data()))
            if "phase" in said:
                self._tell(f"{said['phase']} …")
                self._show_progress(said["done"], said["total"])
            elif "error" in said:
                self._error = said["error"]

    def _on_err(self) -> None:
        if self._job is not None:
            text = bytes(self._job.readAllStandardError().data()).decode(errors="replace")
            if percents := _PERCENT.findall(text):
                self._show_progress(int(percents[-1]), 100)

    def _show_progress(self, done: int, total: int) -> None:
        self.bar.setRange(0, 1000 if total else 0)
        self.bar.setValue(1000 * done // total if total else 0)

    def _on_done(self, code: int) -> None:
        self._on_out()
        self._job = None
        self._tell(self._error or ("done" if code == 0 else f"ended with code {code}"))
        self._enable()
        self.refresh()


def _process(parent: QDialog, arguments: list[str]) -> QProcess:
    process = QProcess(parent)
    environment = QProcessEnvironment.systemEnvironment()
    environment.insert("TQDM_POSITION", "-1")  # bars of the hub's client, though no terminal
    process.setProcessEnvironment(environment)
    process.setProgram(sys.executable)
    process.setArguments(arguments)
    return process


def _row(*widgets: QWidget) -> QHBoxLayout:
    row = QHBoxLayout()
    for widget in widgets:
        row.addWidget(widget)
    return row


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "the list of models is empty"
