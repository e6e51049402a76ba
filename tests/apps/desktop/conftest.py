"""The editor's window without a screen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
pytest.importorskip("PySide6.QtWidgets", exc_type=ImportError)

from PySide6.QtCore import QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMessageBox

from edgedec.apps.desktop.recovery import Recovery
from edgedec.apps.desktop.settings import EditorSettings, SettingsFile
from edgedec.apps.desktop.window import EditorWindow

from ...widgets.conftest import PATIENCE_MS, application, collect_here, destroy, until

__all__ = ["application", "collect_here", "until"]


@pytest.fixture
def open_window(application: QApplication, tmp_path: Path) -> Iterator[Callable[..., EditorWindow]]:
    """Returns a maker of windows, which are ended behind the test."""
    windows = []

    def make(settings: EditorSettings | None = None) -> EditorWindow:
        recovery = Recovery(tmp_path / "state")
        kept_in = SettingsFile(tmp_path / "config")
        window = EditorWindow(settings or EditorSettings(), kept_in, recovery)
        windows.append((window, recovery))
        window.new()
        window.show()
        assert QTest.qWaitForWindowActive(window, PATIENCE_MS)
        return window

    yield make
    for window, recovery in windows:
        for edit in window.documents:
            edit.document().setModified(False)  # nobody is there to be asked
        window.close()
        window.end()
        recovery.close()
        destroy(window)


@pytest.fixture
def window(open_window: Callable[..., EditorWindow]) -> EditorWindow:
    return open_window()


def answer(text: str) -> list[str]:
    """Has the next question answered by the button called ``text``; returns what was asked."""
    asked: list[str] = []

    def press() -> None:
        box = QApplication.activeModalWidget()
        if not isinstance(box, QMessageBox):
            QTimer.singleShot(5, press)
            return
        asked.append(box.text())
        (button,) = [one for one in box.buttons() if one.text().replace("&", "") == text]
        button.click()

    QTimer.singleShot(0, press)
    return asked
