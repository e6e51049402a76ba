"""Where the machine's power is from, by files as Linux has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.system.power import PowerSource


@pytest.mark.parametrize(
    ("facts", "is_battery"),
    [
        ({"type": "Battery\n", "status": "Discharging\n"}, True),
        ({"type": "Battery\n", "status": "Charging\n"}, False),
        ({"type": "Battery\n", "status": "Discharging\n", "scope": "Device\n"}, False),
        ({"type": "Mains\n", "online": "0\n"}, False),
        ({"type": b"\xff"}, False),
        ({}, False),
    ],
)
def test_a_battery_that_is_drained(
    tmp_path: Path, facts: dict[str, str | bytes], is_battery: bool
) -> None:
    supply = tmp_path / "BAT0"
    supply.mkdir()
    for name, value in facts.items():
        (supply / name).write_bytes(value if isinstance(value, bytes) else value.encode())
    source = PowerSource(tmp_path)
    assert source.is_battery is is_battery
    for name in facts:
        (supply / name).unlink()
    assert source.is_battery is is_battery  # it is not asked at every token


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    assert not PowerSource(tmp_path / "none").is_battery
