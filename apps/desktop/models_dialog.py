"""The model manager: what can be downloaded, what is here, and what is used."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import (
    QDialog,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from edgedec.apps.desktop.model_chooser import ModelChooser
from edgedec.apps.desktop.model_jobs import ModelJobs

_HUB = "From the Hugging Face hub:"


class ModelsDialog(QDialog):
    """Lists all models, and takes names of the hub. chosen: emitted with the bundle to use."""

    chosen = Signal(str)

    def __init__(self, jobs: ModelJobs, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Models")
        self.resize(860, 520)
        self._jobs = jobs
        self.chooser = ModelChooser(jobs, has_large=True)
        self.hub_name, self.get = QLineEdit(), QPushButton("Get and use")
        self.hub_name.setPlaceholderText("org/name or org/name:FILE.gguf")
        self.get.setAutoDefault(False)
        hub = QHBoxLayout()
        for widget in (QLabel(_HUB), self.hub_name, self.get):
            hub.addWidget(widget)
        layout = QVBoxLayout(self)
        layout.addWidget(self.chooser)
        layout.addLayout(hub)
        self.chooser.chosen.connect(self.chosen)
        self.get.clicked.connect(self._get_from_hub)
        self.hub_name.returnPressed.connect(self._get_from_hub)
        self.hub_name.textChanged.connect(self._enable)
        jobs.began.connect(self._enable)
        jobs.ended.connect(self._enable)
        self._enable()

    def _get_from_hub(self) -> None:
        self._jobs.get(self.hub_name.text().strip())

    def _enable(self) -> None:
        self.get.setEnabled(not self._jobs.is_busy and bool(self.hub_name.text().strip()))
