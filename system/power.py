"""Whether the machine draws on its battery, where the system tells."""

from __future__ import annotations

import time
from pathlib import Path

_POWER_SUPPLY = Path("/sys/class/power_supply")
_LOOK_S = 5.0
"""How often the system is asked at most."""


class PowerSource:
    """Tells where the machine's power is from."""

    def __init__(self, folder: Path = _POWER_SUPPLY) -> None:
        self._folder = folder
        self._looked_s = -_LOOK_S
        self._is_battery = False

    @property
    def is_battery(self) -> bool:
        """A battery of the machine is being drained; False where the system does not tell."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._is_battery = any(map(_is_drained, self._folder.glob("*")))
        return self._is_battery


def _is_drained(supply: Path) -> bool:
    """Whether a supply is a battery of the machine, not of a mouse, and is being drained."""
    facts = (_read(supply / "type"), _read(supply / "status"), _read(supply / "scope"))
    return facts[:2] == ("Battery", "Discharging") and facts[2] != "Device"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
