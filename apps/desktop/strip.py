"""A line below the text that tells what happened."""

from __future__ import annotations

import os
import time
from html import escape

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QLabel, QStatusBar, QWidget

from edgedec.apps.desktop.served_model import ServedModel
from edgedec.apps.desktop.themes import Theme
from edgedec.autocomplete import Offer
from edgedec.widgets import Suggester

_LOOK_MS = 1000


class Strip(QStatusBar):
    """Shows the time to the latest suggestion, tokens by their origin, and the share of processors.

    Remarks take its left side for a while.
    """

    def __init__(
        self,
        suggester: Suggester,
        served: ServedModel,
        theme: Theme,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._served, self._theme = served, theme
        self.model, self.offer, self.tokens, self.processor = (QLabel() for _ in range(4))
        for label in (self.model, self.offer, self.tokens, self.processor):
            self.addPermanentWidget(label)
        self._shown_version = -1
        self._cpu_s, self._looked_s = self._spent_s(), time.monotonic()
        suggester.offered.connect(self._on_offer)
        looking = QTimer(self)
        looking.timeout.connect(self.look)
        looking.start(_LOOK_MS)

    def look(self) -> None:
        """Shows what the counters say now."""
        cpu_s, now_s = self._spent_s(), time.monotonic()
        share = (cpu_s - self._cpu_s) / max(now_s - self._looked_s, 1e-9) / (os.cpu_count() or 1)
        self._cpu_s, self._looked_s = cpu_s, now_s
        self.processor.setText(
            f"CPU {max(share, 0):.0%}"
        )  # a process that ended takes its own along
        self.tokens.setText(self._told())

    def _spent_s(self) -> float:
        return time.process_time() + self._served.cpu_s

    def _on_offer(self, offer: Offer) -> None:
        if offer.version != self._shown_version:  # the first of this key
            self._shown_version = offer.version
            self.offer.setText(f"{offer.ms:.0f} ms")

    def _told(self) -> str:
        served = self._served
        by_origin = " ".join(
            f'<span style="color:{self._theme.of_origin(name).name()}">{escape(name)} {n}</span>'
            for name, n in served.origins.most_common()
        )
        drafted = f"drafted {served.n_drafted}, accepted {served.n_accepted}"
        return f"{drafted} · {by_origin}" if by_origin else drafted
