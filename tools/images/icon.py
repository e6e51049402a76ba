"""Draws the application's icon as a PNG, for those who take no SVG.

QT_QPA_PLATFORM=offscreen python tools/images/icon.py editors/vscode/icon.png
"""

from __future__ import annotations

import sys

from PySide6.QtGui import QGuiApplication

from edgedec.apps.desktop.icons import icon_pixmap

_SIZE = 256


def main(picture: str) -> None:
    """Draws it."""
    application = QGuiApplication([])
    icon_pixmap(_SIZE).save(picture)
    application.quit()


if __name__ == "__main__":
    main(sys.argv[1])
