"""Whether there is a display: Qt ends the process where it finds none."""

from __future__ import annotations

import os
import subprocess
import sys

from edgedec.models.errors import ConfigError
from edgedec.system.machine import needs_display_server

_NAMES = ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
_TRY = "from PySide6.QtWidgets import QApplication; QApplication([])"


class DisplayCheck:
    """Opens a window system's connection in another process, while this one goes on."""

    def __init__(self) -> None:
        """Begins."""
        self._trying: subprocess.Popen[str] | None = None
        if needs_display_server():
            self._trying = subprocess.Popen(
                [sys.executable, "-c", _TRY], stderr=subprocess.PIPE, text=True
            )

    def end(self) -> None:
        """Waits for the outcome.

        Raises:
            ConfigError: Qt cannot show a window here.
        """
        if self._trying is None:
            return
        self._trying.communicate()
        if self._trying.returncode == 0:
            return
        named = [f"{name}={os.environ[name]}" for name in _NAMES if os.environ.get(name)]
        reason = (
            f"Qt cannot open {', '.join(named)}: nobody answers, or libxcb-cursor0 is not installed"
            if named
            else "neither DISPLAY nor WAYLAND_DISPLAY is set"
        )
        raise ConfigError(
            f"desktop needs a display: {reason}; run it in a desktop session, or with a virtual "
            "display: xvfb-run edgedec desktop"
        )
