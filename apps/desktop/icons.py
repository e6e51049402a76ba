"""The application's icon: written text, a cursor, and what is suggested behind it."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

_FILE = Path(__file__).with_name("icon.svg")
_PAUSED = {"#3b82e0": "#a3a9b0", "#1c4a94": "#6c737b", "#ffd166": "#ffffff"}
_SIZES = (16, 24, 32, 48, 64, 128, 256)
"""Units: pixels."""


def make_icon(is_paused: bool = False) -> QIcon:
    """Returns the icon of the application; grey while suggestions are paused."""
    icon = QIcon()
    for size in _SIZES:
        icon.addPixmap(icon_pixmap(size, is_paused))
    return icon


def icon_pixmap(size: int, is_paused: bool = False) -> QPixmap:
    """Returns the icon, ``size`` pixels wide and high."""
    text = _FILE.read_text(encoding="utf-8")
    for colour, grey in _PAUSED.items() if is_paused else ():
        text = text.replace(colour, grey)
    pixmap = QPixmap(size, size)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    QSvgRenderer(text.encode()).render(painter)
    painter.end()
    return pixmap
