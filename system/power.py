"""Whether the machine draws on its battery, if the system knows."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from edgedec.system import _linux

if sys.platform == "win32":
    from edgedec.system import _windows
elif sys.platform == "darwin":
    from edgedec.system import _macos

_POWER_SUPPLY = Path("/sys/class/power_supply")
_LOOK_S = 5.0
"""How often the system is asked at most."""


class PowerSource:
    """Tells where the machine's power is from."""

    def __init__(self, folder: Path = _POWER_SUPPLY) -> None:
        """folder: where Linux describes batteries."""
        self._folder = folder
        self._looked_s = -_LOOK_S
        self._is_battery = False

    @property
    def is_battery(self) -> bool:
        """A battery of the machine is being drained; False where the system does not tell."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._is_battery = self._is_drained()
        return self._is_battery

    def _is_drained(self) -> bool:
        if sys.platform == "win32":
            return _windows.is_on_battery()
        if sys.platform == "darwin":
            return _macos.is_on_battery()
        return any(map(_is_drained, self._folder.glob("*")))


def _is_drained(supply: Path) -> bool:
    """Whether a supply is a battery of the machine, not of a mouse, and is being drained."""
    kind, status, scope = (_linux.text(supply / name) for name in ("type", "status", "scope"))
    return (kind, status) == ("Battery", "Discharging") and scope != "Device"
