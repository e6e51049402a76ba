"""From a command line to a window, and to its end."""

from __future__ import annotations

import gc
import signal
from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication

from edgedec.apps.desktop.recovery import Recovery
from edgedec.apps.desktop.settings import EditorSettings, SettingsFile
from edgedec.apps.desktop.window import EditorWindow
from edgedec.models.errors import ConfigError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_COLLECT_MS = 5000
_LOOK_MS = 100


def run_editor(
    settings: EditorSettings, kept_in: SettingsFile, paths: Sequence[Path], remark: str = ""
) -> int:
    """Shows the window until it is closed; returns the exit code.

    Raises:
        ConfigError: There is no place for unsaved text.
    """
    application = QApplication(["edgedec"])
    application.setApplicationName("edgedec")
    application.setQuitOnLastWindowClosed(True)
    try:
        recovery = Recovery()
    except OSError as error:
        raise ConfigError(f"there is no place for unsaved text: {error}") from None
    window = EditorWindow(settings, kept_in, recovery)
    collect_here(application)
    _end_on_signals(application, window)
    window.new()
    window.open(paths)
    if not (settings.bundle or paths):
        window.welcome()
    window.show()
    if remark:
        window.tell(remark)
    QTimer.singleShot(0, window.open_left_behind)
    code = application.exec()
    recovery.close(is_kept=code != 0)
    return code


def collect_here(application: QApplication) -> None:
    """Has garbage collected in this thread alone: Qt's objects must not be destroyed in others."""
    gc.freeze()
    gc.disable()
    collecting = QTimer(application)
    collecting.timeout.connect(gc.collect)
    collecting.start(_COLLECT_MS)


def _end_on_signals(application: QApplication, window: EditorWindow) -> None:
    """Has Ctrl-C and requests to end write unsaved text down, and end the window.

    Python runs a handler in the midst of whatever it does, which may hold a lock that writing
    needs: so it only notes the signal, for a timer to find.
    """
    heard: list[int] = []
    for number in _SIGNALS:
        signal.signal(number, lambda number, frame: heard.append(number))

    def look() -> None:
        if heard:
            looking.stop()
            window.keep_unsaved()
            window.end()
            application.exit(128 + heard[0])

    looking = QTimer(application)
    looking.timeout.connect(look)
    looking.start(_LOOK_MS)
