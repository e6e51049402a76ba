"""How the window looks."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication

from edgedec.runtime.decoding.strategy import TARGET

_ROLES = {
    QPalette.ColorRole.Window: ("#f3f3f3", "#25282c"),
    QPalette.ColorRole.WindowText: ("#202020", "#dddddd"),
    QPalette.ColorRole.Base: ("#ffffff", "#1b1d20"),
    QPalette.ColorRole.AlternateBase: ("#f3f3f3", "#25282c"),
    QPalette.ColorRole.Text: ("#202020", "#dddddd"),
    QPalette.ColorRole.Button: ("#e8e8e8", "#2f3338"),
    QPalette.ColorRole.ButtonText: ("#202020", "#dddddd"),
    QPalette.ColorRole.ToolTipBase: ("#ffffe1", "#2f3338"),
    QPalette.ColorRole.ToolTipText: ("#202020", "#dddddd"),
    QPalette.ColorRole.PlaceholderText: ("#8a8a8a", "#7d848c"),
    QPalette.ColorRole.Highlight: ("#2a6fc9", "#3d6fa8"),
    QPalette.ColorRole.HighlightedText: ("#ffffff", "#ffffff"),
}
"""Colours of the light theme, and of the dark one."""

_WRITTEN = (
    QPalette.ColorRole.Text,
    QPalette.ColorRole.ButtonText,
    QPalette.ColorRole.WindowText,
)
"""Roles that are grey where something is disabled."""

_MATCH = ("#ffe08a", "#6b5618")
"""Background of the places that a search found."""

_ORIGINS = (
    ("#1a7f37", "#5fbf77"),
    ("#0b7285", "#4dc0d6"),
    ("#9c36b5", "#d58ae8"),
    ("#a86400", "#e0a94a"),
    ("#1c5fc4", "#7fb0ff"),
    ("#c92a2a", "#ff8787"),
)
"""Colours of drafters, in the order they appear."""


def system_is_dark() -> bool:
    """Returns whether the system asks applications to be dark; some cannot say so."""
    return QGuiApplication.styleHints().colorScheme() == Qt.ColorScheme.Dark


class Theme:
    """The colours of the window, and of text by the drafter that it is from."""

    def __init__(self) -> None:
        self._is_dark = False
        self._origins: list[str] = []

    @property
    def is_dark(self) -> bool:
        """The dark colours are in use."""
        return self._is_dark

    def apply(self, application: QApplication, name: str) -> None:
        """Makes the whole application look so: "light", "dark", or as the system does."""
        self._is_dark = system_is_dark() if name == "system" else name == "dark"
        palette = QPalette()
        for role, colours in _ROLES.items():
            palette.setColor(role, QColor(colours[self._is_dark]))
        disabled = QColor(_ROLES[QPalette.ColorRole.PlaceholderText][self._is_dark])
        for role in _WRITTEN:
            palette.setColor(QPalette.ColorGroup.Disabled, role, disabled)
        application.setStyle("Fusion")
        application.setPalette(palette)

    @property
    def match_colour(self) -> QColor:
        """Returns the colour behind what was found."""
        return QColor(_MATCH[self._is_dark])

    def of_origin(self, origin: str) -> QColor:
        """Returns the colour of a drafter's text; ghostly grey for the target model's."""
        if origin == TARGET:
            return QColor(_ROLES[QPalette.ColorRole.PlaceholderText][self._is_dark])
        if origin not in self._origins:
            self._origins.append(origin)
        return QColor(_ORIGINS[self._origins.index(origin) % len(_ORIGINS)][self._is_dark])
