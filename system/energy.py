"""Energy the machine used, if measured: RAPL counters, Tegra's sensors, a draining battery."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_POWERCAP = Path("/sys/class/powercap")
_POWER_SUPPLY = Path("/sys/class/power_supply")
_HWMON = Path("/sys/class/hwmon")
_LOOK_S = 0.1
_TEGRA_POWER = re.compile(r"\b(?:VDD_IN|POM_5V_IN|VIN_SYS_5V0|SYS5V)\s+(\d+)(?:mW)?/")


class EnergyMeter(Protocol):
    """Measures the energy used between `start` and `stop`."""

    @property
    def name(self) -> str:
        """What is measured, and by what."""

    def start(self) -> None:
        """Begins a measurement."""

    def stop(self) -> float | None:
        """Returns the energy used since `start`. Units: joules."""

    def close(self) -> None:
        """Ends whatever the meter keeps running."""


def find_meter(
    powercap: Path = _POWERCAP, power_supply: Path = _POWER_SUPPLY, hwmon: Path = _HWMON
) -> EnergyMeter | None:
    """Returns the best meter of this machine, or None if it measures nothing."""
    counters = tuple(
        zone / "energy_uj"
        for zone in sorted(powercap.glob("intel-rapl:*"))
        if zone.name.count(":") == 1 and _read_number(zone / "energy_uj") is not None
    )
    if counters:
        return RaplMeter(counters)
    if program := shutil.which("tegrastats"):
        return TegraMeter([program, "--interval", "100"])
    for sensor in sorted(hwmon.glob("*")):
        if ina_watts(sensor) is not None:
            return InaMeter(sensor)
    for battery in sorted(power_supply.glob("*")):
        if battery_watts(battery) is not None:
            return BatteryMeter(battery)
    return None


class RaplMeter:
    """Running Average Power Limit counters of all CPU packages. They wrap around."""

    name = "RAPL, CPU packages"

    def __init__(self, counters: tuple[Path, ...]) -> None:
        self._counters = counters
        self._before: list[int | None] = []

    def start(self) -> None:
        """Reads the counters."""
        self._before = [_read_number(counter) for counter in self._counters]

    def stop(self) -> float | None:
        """Returns what the counters rose by since `start`, None if one cannot be read."""
        total = 0
        for counter, before in zip(self._counters, self._before, strict=True):
            after = _read_number(counter)
            if before is None or after is None:
                return None
            if after < before:
                after += _read_number(counter.with_name("max_energy_range_uj")) or 0
            total += after - before
        return 1e-6 * total

    def close(self) -> None:
        """Nothing keeps running."""


class BatteryMeter:
    """Power drawn from a battery, before and after, times the time between."""

    name = "battery, whole machine"

    def __init__(self, battery: Path, clock: Callable[[], float] = time.perf_counter) -> None:
        self._battery = battery
        self._clock = clock
        self._started_s = 0.0
        self._watts: float | None = None

    def start(self) -> None:
        """Reads the power drawn now."""
        self._watts = battery_watts(self._battery)
        self._started_s = self._clock()

    def stop(self) -> float | None:
        """Returns the mean of the power drawn at `start` and now, times the time between."""
        elapsed_s = self._clock() - self._started_s
        watts = battery_watts(self._battery)
        if self._watts is None or watts is None:
            return None
        return elapsed_s * (self._watts + watts) / 2

    def close(self) -> None:
        """Nothing keeps running."""


class TegraMeter:
    """Mean power that tegrastats reports between `start` and `stop`, times the time between."""

    name = "tegrastats, whole board"

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._started_s = 0.0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Starts tegrastats."""
        self.close()
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        self._started_s = time.perf_counter()

    def stop(self) -> float | None:
        """Ends tegrastats and returns its mean power times the time; None if it gave none."""
        if self._process is None:
            return None
        elapsed_s = time.perf_counter() - self._started_s
        self._process.terminate()
        text, _ = self._process.communicate()
        self._process = None
        watts = tegra_watts(text)
        return None if watts is None else elapsed_s * watts

    def close(self) -> None:
        """Ends tegrastats."""
        if self._process is not None:
            self._process.terminate()
            self._process.communicate()
            self._process = None


class InaMeter:
    """Mean power of a sensor of the kind INA, read ten times a second, times the time between."""

    def __init__(self, sensor: Path) -> None:
        self._sensor = sensor
        self.name = f"{_read_text(sensor / 'name')} sensor, {_ina_rail(sensor)}"
        self._started_s = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._watts: list[float] = []

    def start(self) -> None:
        """Begins to read the sensor."""
        self.close()
        self._watts, self._ended = [], threading.Event()
        self._started_s = time.perf_counter()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            if (watts := ina_watts(self._sensor)) is not None:
                self._watts.append(watts)
            if self._ended.wait(_LOOK_S):
                return

    def stop(self) -> float | None:
        """Returns the mean power times the time since `start`; None if the sensor has none."""
        elapsed_s = time.perf_counter() - self._started_s
        self.close()
        return elapsed_s * sum(self._watts) / len(self._watts) if self._watts else None

    def close(self) -> None:
        """Ends the reading."""
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None


_WHOLE_BOARD = ("VDD_IN", "VIN_SYS_5V0", "POM_5V_IN")
"""Labels of the rail that feeds a whole board, on Jetsons; other boards have one rail."""


def ina_watts(sensor: Path) -> float | None:
    """Returns the power of a board by one of its sensors, None if that is not what it measures.

    sensor: a folder of Linux's hwmon. Power is in microwatts there, else millivolts times
    milliamperes.
    """
    if not _read_text(sensor / "name").startswith("ina") or (rail := _ina_rail(sensor)) is None:
        return None
    number = rail.rpartition(" ")[2]
    if (microwatts := _read_number(sensor / f"power{number}_input")) is not None:
        return 1e-6 * microwatts
    millivolts = _read_number(sensor / f"in{number}_input")
    milliamperes = _read_number(sensor / f"curr{number}_input")
    if millivolts is None or milliamperes is None:
        return None
    return 1e-6 * millivolts * milliamperes


def _ina_rail(sensor: Path) -> str | None:
    """Returns name and number of the rail of the whole board, ``rail 1`` without labels."""
    labels = {place.name[2:-6]: _read_text(place) for place in sorted(sensor.glob("in*_label"))}
    if not labels:
        return "rail 1"
    whole = [number for number, label in labels.items() if label in _WHOLE_BOARD]
    return f"{labels[whole[0]]}, rail {whole[0]}" if whole else None


def tegra_watts(text: str) -> float | None:
    """Returns the mean power of the whole board in what tegrastats wrote, if it is there."""
    milliwatts = [int(milliwatts) for milliwatts in _TEGRA_POWER.findall(text)]
    return 1e-3 * sum(milliwatts) / len(milliwatts) if milliwatts else None


def battery_watts(battery: Path) -> float | None:
    """Returns what a battery delivers right now, or None unless it is draining and measured."""
    try:
        if (battery / "status").read_text().strip() != "Discharging":
            return None
    except OSError:
        return None
    if (microwatts := _read_number(battery / "power_now")) is not None:
        return 1e-6 * abs(microwatts)
    microamperes = _read_number(battery / "current_now")
    microvolts = _read_number(battery / "voltage_now")
    if microamperes is None or microvolts is None:
        return None
    return 1e-12 * abs(microamperes) * microvolts


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
