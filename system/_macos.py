"""What macOS says through `sysctl` and `pmset`. Parsers run anywhere."""

from __future__ import annotations

import subprocess


def sysctl(name: str) -> str:
    """Returns a value by its name; empty if there is none."""
    return _said("sysctl", "-n", name)


def core_counts() -> list[int]:
    """Returns the number of cores of each kind, the fastest kind first; none if unknown."""
    counts = [sysctl(f"hw.perflevel{level}.physicalcpu") for level in range(3)]
    return [int(count) for count in counts if count.isdecimal()]


def is_on_battery() -> bool:
    """Returns whether the machine draws on its battery."""
    return draws_on_battery(_said("pmset", "-g", "batt"))


def draws_on_battery(said: str) -> bool:
    """Returns whether that is what ``pmset -g batt`` said."""
    return said.startswith("Now drawing from 'Battery Power'")


def _said(*command: str) -> str:
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return run.stdout.strip()
