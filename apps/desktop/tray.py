"""An icon that pauses suggestions, where the desktop has a place for such icons."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu, QSystemTrayIcon, QWidget

from edgedec.apps.desktop.icons import make_icon


class Tray:
    """The icon; nothing where there is no place for it."""

    def __init__(self, window: QWidget, pausing: QAction, show: Callable[[], None]) -> None:
        """Takes the action that pauses, and one that brings the window up."""
        self.icon: QSystemTrayIcon | None = None
        if not QSystemTrayIcon.isSystemTrayAvailable():
            return
        self._menu = QMenu(window)
        self._menu.addAction(pausing)
        self._menu.addAction("Show", show)
        self.icon = QSystemTrayIcon(make_icon(), window)
        self.icon.setToolTip("edgedec")
        self.icon.setContextMenu(self._menu)
        self.icon.show()

    def show_paused(self, is_paused: bool) -> None:
        """Makes the icon tell whether suggestions are paused."""
        if self.icon is not None:
            self.icon.setIcon(make_icon(is_paused))
