"""An icon that pauses suggestions, where the desktop has a place for such icons."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QColor, QFont, QIcon, QPainter, QPixmap
from PySide6.QtWidgets import QMenu, QSystemTrayIcon, QWidget


def make_icon(is_paused: bool = False) -> QIcon:
    """Returns the icon of the application; grey while it is paused."""
    pixmap = QPixmap(64, 64)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setBrush(QColor("#8a8a8a" if is_paused else "#2a6fc9"))
    painter.setPen(Qt.PenStyle.NoPen)
    painter.drawRoundedRect(2, 2, 60, 60, 14, 14)
    painter.setPen(QColor("white"))
    font = QFont()
    font.setPixelSize(40)
    font.setBold(True)
    painter.setFont(font)
    painter.drawText(pixmap.rect(), Qt.AlignmentFlag.AlignCenter, "e…")
    painter.end()
    return QIcon(pixmap)


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
