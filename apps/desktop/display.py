"""Whether there is a display: Qt ends the process where it finds none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from edgedec.models.errors import ConfigError
from edgedec.system.machine import needs_display_server

_NAMES = ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM")
_TRY = "from PySide6.QtWidgets import QApplication; QApplication([])"
_MISSING = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)

_DEBIAN = {
    "libEGL.so.1": "libegl1",
    "libGL.so.1": "libgl1",
    "libX11-xcb.so.1": "libx11-xcb1",
    "libX11.so.6": "libx11-6",
    "libdbus-1.so.3": "libdbus-1-3",
    "libfontconfig.so.1": "libfontconfig1",
    "libfreetype.so.6": "libfreetype6",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libgthread-2.0.so.0": "libglib2.0-0",
    "libwayland-client.so.0": "libwayland-client0",
    "libwayland-cursor.so.0": "libwayland-cursor0",
    "libwayland-egl.so.1": "libwayland-egl1",
    "libxcb-cursor.so.0": "libxcb-cursor0",
    "libxcb-icccm.so.4": "libxcb-icccm4",
    "libxcb-image.so.0": "libxcb-image0",
    "libxcb-keysyms.so.1": "libxcb-keysyms1",
    "libxcb-randr.so.0": "libxcb-randr0",
    "libxcb-render-util.so.0": "libxcb-render-util0",
    "libxcb-render.so.0": "libxcb-render0",
    "libxcb-shape.so.0": "libxcb-shape0",
    "libxcb-shm.so.0": "libxcb-shm0",
    "libxcb-sync.so.1": "libxcb-sync1",
    "libxcb-util.so.1": "libxcb-util1",
    "libxcb-xfixes.so.0": "libxcb-xfixes0",
    "libxcb-xkb.so.1": "libxcb-xkb1",
    "libxcb.so.1": "libxcb1",
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
    "libxkbcommon.so.0": "libxkbcommon0",
}
"""Packages of Debian and Ubuntu that have the libraries which Qt needs and does not bring."""


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
        if named and (missing := missing_libraries()):
            raise ConfigError(f"desktop needs {libraries_remedy(missing)}")
        reason = (
            f"no display answers at {', '.join(named)}"
            if named
            else "neither DISPLAY nor WAYLAND_DISPLAY is set"
        )
        raise ConfigError(
            f"desktop needs a display: {reason}; run it in a desktop session, or with a virtual "
            "display: xvfb-run edgedec desktop"
        )


def missing_libraries() -> list[str]:
    """Returns the system's libraries that Qt's way to the display needs and that are not here."""
    platform = os.environ.get("QT_QPA_PLATFORM", "").partition(":")[0]
    if not platform:
        platform = "xcb" if os.environ.get("DISPLAY") else "wayland"
    spec = find_spec("PySide6")
    folders = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    pattern = f"Qt/plugins/platforms/libq{platform}*.so"
    libraries: set[str] = set()
    for plugin in (path for folder in folders for path in folder.glob(pattern)):
        try:
            seen = subprocess.run(["ldd", plugin], capture_output=True, text=True, check=False)
        except OSError:  # a system without ldd
            return []
        libraries.update(_MISSING.findall(seen.stdout))
    return sorted(libraries)


def libraries_remedy(names: Iterable[str]) -> str:
    """Returns in words which libraries are missing, and what installs them."""
    names = list(names)
    packages = sorted({_DEBIAN[name] for name in names if name in _DEBIAN})
    text = f"libraries of the system that are missing: {', '.join(names)}"
    if packages:
        text += f"; on Debian and Ubuntu: sudo apt install {' '.join(packages)}"
    return text
