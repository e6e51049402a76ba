"""Counters of the model, for those who want them."""

from __future__ import annotations

import os
import time
from html import escape
from pathlib import Path

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QDockWidget, QFormLayout, QLabel, QWidget

from edgedec.apps.desktop.served_model import ServedModel
from edgedec.apps.desktop.strip import Strip
from edgedec.apps.desktop.themes import Theme
from edgedec.runtime.decoding.strategy import TARGET

_LOOK_MS = 1000
_MODEL_ITSELF = "the model"


class DetailsPanel(QDockWidget):
    """Shows the model, its speed, and who drafted what; looks once a second while it is seen."""

    def __init__(
        self, served: ServedModel, strip: Strip, theme: Theme, parent: QWidget | None = None
    ) -> None:
        super().__init__("Details", parent)
        self.setObjectName("details")
        self._served, self._strip, self._theme = served, strip, theme
        self._bundle = ""
        self._cpu_s, self._looked_s = self._spent_s(), time.monotonic()
        content = QWidget()
        form = QFormLayout(content)
        form.setRowWrapPolicy(QFormLayout.RowWrapPolicy.WrapAllRows)
        names = ("Model", "Time to suggestion", "Drafted tokens", "Written by", "Processor time")
        self.values = {name: QLabel("–") for name in names}
        for name, value in self.values.items():
            value.setWordWrap(True)
            value.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            form.addRow(f"<b>{name}</b>", value)
        self.setWidget(content)
        self._looking = QTimer(self, interval=_LOOK_MS)
        self._looking.timeout.connect(self.look)
        self.visibilityChanged.connect(self._on_seen)

    def show_bundle(self, bundle: str) -> None:
        """A bundle serves from now on."""
        self._bundle = bundle
        self.look()

    def look(self) -> None:
        """Shows what the counters say now."""
        served, values = self._served, self.values
        cpu_s, now_s = self._spent_s(), time.monotonic()
        share = (cpu_s - self._cpu_s) / max(now_s - self._looked_s, 1e-9) / (os.cpu_count() or 1)
        self._cpu_s, self._looked_s = cpu_s, now_s
        values["Model"].setText(Path(self._bundle).name or "none")
        values["Model"].setToolTip(self._bundle)
        ms = self._strip.ms
        values["Time to suggestion"].setText("–" if ms < 0 else f"{ms:.0f} ms")
        drafted, accepted = served.n_drafted, served.n_accepted
        values["Drafted tokens"].setText(f"{drafted:,}, {accepted:,} accepted")
        values["Written by"].setText(self._by_origin() or "–")
        # A process that ended takes its own time along.
        values["Processor time"].setText(f"{max(share, 0):.0%} of all processors")

    def _by_origin(self) -> str:
        return "<br>".join(
            f'<span style="color:{self._theme.of_origin(name).name()}">'
            f"{escape(_MODEL_ITSELF if name == TARGET else name)}</span>: {n:,} tokens"
            for name, n in self._served.origins.most_common()
        )

    def _spent_s(self) -> float:
        return time.process_time() + self._served.cpu_s

    def _on_seen(self, is_seen: bool) -> None:
        if is_seen:
            self._looking.start()
            self.look()
        else:
            self._looking.stop()
