"""A line below the text: remarks, whether there are suggestions, and how fast they come."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QPushButton, QStatusBar, QWidget

from edgedec.autocomplete import Offer
from edgedec.widgets import Suggester

NO_MODEL = "No model: get one"


class Strip(QStatusBar):
    """Shows one thing: suggestions are on or off, and the time from a key to the latest one.

    pressed: somebody wants the other of on and off, or a model where there is none. Remarks take
    the left side for a while.
    """

    pressed = Signal()

    def __init__(self, suggester: Suggester, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._suggester = suggester
        self._loading, self.ms = "", -1.0
        self._shown_version = -1
        self.state = QPushButton(NO_MODEL, flat=True)
        self.state.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.state.setCursor(Qt.CursorShape.PointingHandCursor)
        self.state.clicked.connect(lambda: self.pressed.emit())
        self.addPermanentWidget(self.state)
        suggester.offered.connect(self._on_offer)

    @property
    def has_model(self) -> bool:
        """There is a model, or one is being loaded."""
        return bool(self._loading) or self._suggester.completer is not None

    def show_loading(self, name: str) -> None:
        """A model is being loaded; empty: no longer."""
        self._loading = name
        self.look()

    def look(self) -> None:
        """Shows how things are now."""
        if self._suggester.is_paused and self.has_model:
            text, tip = "Suggestions off", "Click to turn suggestions on"
        elif self._loading:
            text, tip = f"Loading {self._loading} …", "Suggestions begin when the model is loaded"
        elif self._suggester.completer is None:
            text, tip = NO_MODEL, "Click to choose a model"
        else:
            time = "" if self.ms < 0 else f" · {self.ms:.0f} ms"
            text = f"Suggestions on{time}"
            tip = "Time from the key to the suggestion. Click to turn suggestions off"
        self.state.setText(text)
        self.state.setToolTip(tip)

    def _on_offer(self, offer: Offer) -> None:
        if offer.version != self._shown_version:  # the first of this key
            self._shown_version, self.ms = offer.version, offer.ms
            self.look()
