"""A line below the text that tells what happened."""

from __future__ import annotations

import os
import time
from html import escape

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QLabel, QStatusBar, QWidget

from edgedec.apps.editor.themes import Theme
from edgedec.autocomplete import Offer, TypingCounts
from edgedec.widgets import Suggester

_LOOK_MS = 1000


class Strip(QStatusBar):
    """Shows the time to the latest suggestion, tokens by their origin, and the share of processors.

    Remarks take its left side for a while.
    """

    def __init__(self, suggester: Suggester, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._suggester, self._theme = suggester, theme
        self.model, self.offer, self.tokens, self.processor = (QLabel() for _ in range(4))
        for label in (self.model, self.offer, self.tokens, self.processor):
            self.addPermanentWidget(label)
        self._shown_version = -1
        self._cpu_s, self._looked_s = time.process_time(), time.monotonic()
        suggester.offered.connect(self._on_offer)
        looking = QTimer(self)
        looking.timeout.connect(self.look)
        looking.start(_LOOK_MS)

    def look(self) -> None:
        """Shows what the counters say now."""
        cpu_s, now_s = time.process_time(), time.monotonic()
        share = (cpu_s - self._cpu_s) / max(now_s - self._looked_s, 1e-9) / (os.cpu_count() or 1)
        self._cpu_s, self._looked_s = cpu_s, now_s
        self.processor.setText(f"CPU {share:.0%}")
        if self._suggester.completer is not None:
            self.tokens.setText(self._told(self._suggester.completer.counts))

    def _on_offer(self, offer: Offer) -> None:
        if offer.version != self._shown_version:  # the first of this key
            self._shown_version = offer.version
            self.offer.setText(f"{offer.ms:.0f} ms")

    def _told(self, counts: TypingCounts) -> str:
        origins = dict(counts.origins)
        by_origin = " ".join(
            f'<span style="color:{self._theme.of_origin(name).name()}">{escape(name)} {n}</span>'
            for name, n in sorted(origins.items(), key=lambda item: -item[1])
        )
        drafted = f"drafted {counts.n_drafted}, accepted {counts.n_accepted}"
        return f"{drafted} · {by_origin}" if by_origin else drafted
