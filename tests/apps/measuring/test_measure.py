"""Statistics, CPU times and energy counters, read from files made up for the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.apps.measuring.disturbance import MeasuringWindow
from edgedec.apps.measuring.summary import summarize
from edgedec.models.errors import ConfigError
from edgedec.system.cpu_times import read_cpu_times
from edgedec.system.energy import BatteryMeter, RaplMeter, find_meter, tegra_watts

STAT = """cpu  400 40 200 9000 10 4 8 30 0 0
cpu0 100 20 50 4000 5 2 4 10 0 0
cpu1 300 20 150 5000 5 2 4 20 0 0
intr 123
"""


def test_summary_of_known_numbers() -> None:
    found = summarize([2.0, 4.0, 9.0])
    assert (found.n, found.mean, found.median) == (3, 5.0, 4.0)
    assert found.std == pytest.approx(13**0.5)
    assert found.spread == pytest.approx(13**0.5 / 5)
    assert (found.minimum, found.maximum) == (2.0, 9.0)
    assert found.to_dict() == {"mean": 5.0, "std": found.std, "median": 4.0}


def test_summary_of_one_number_has_no_spread() -> None:
    assert summarize([3.0]).std == 0
    assert summarize([0.0]).spread == 0


def test_summary_of_nothing_is_an_error() -> None:
    with pytest.raises(ConfigError, match="nothing to summarize"):
        summarize([])


def test_cpu_times_count_only_usable_cpus(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text(STAT)
    both = read_cpu_times(stat, frozenset({0, 1}))
    one = read_cpu_times(stat, frozenset({1}))
    assert both is not None
    assert one is not None
    assert (both.n_cpus, one.n_cpus) == (2, 1)
    assert both.busy_s / one.busy_s == pytest.approx(652 / 476)
    assert both.stolen_s / one.stolen_s == pytest.approx(30 / 20)


def test_no_cpu_times_where_the_system_does_not_tell(tmp_path: Path) -> None:
    assert read_cpu_times(tmp_path / "absent", frozenset({0})) is None
    (tmp_path / "stat").write_text("cpu 1 2 3\n")
    assert read_cpu_times(tmp_path / "stat", frozenset({0})) is None


def test_windows_add_up() -> None:
    whole = MeasuringWindow(2.0, 1.0, 0.5, 0.0, 0.0) + MeasuringWindow(2.0, 1.0, 0.0, 0.5, 0.6)
    assert whole == MeasuringWindow(4.0, 2.0, 0.5, 0.5, 0.6)
    assert whole.lost_share == pytest.approx(0.1)
    assert MeasuringWindow(0.0, 0.0, 1.0, 0.0, 0.0).lost_share == 0


def make_zone(folder: Path, name: str, microjoules: int) -> Path:
    zone = folder / name
    zone.mkdir(parents=True)
    (zone / "energy_uj").write_text(f"{microjoules}\n")
    (zone / "max_energy_range_uj").write_text("1000000\n")
    return zone


def test_rapl_adds_packages_and_survives_a_wrap(tmp_path: Path) -> None:
    first = make_zone(tmp_path, "intel-rapl:0", 100)
    second = make_zone(tmp_path, "intel-rapl:1", 900_000)
    make_zone(tmp_path, "intel-rapl:0:0", 5)  # part of a package, not another one
    meter = find_meter(tmp_path, tmp_path / "none")
    assert isinstance(meter, RaplMeter)
    meter.start()
    (first / "energy_uj").write_text("500100\n")
    (second / "energy_uj").write_text("400000\n")
    assert meter.stop() == pytest.approx(0.5 + 0.5)


def test_a_draining_battery_is_a_meter(tmp_path: Path) -> None:
    battery = tmp_path / "BAT0"
    battery.mkdir()
    (battery / "status").write_text("Discharging\n")
    (battery / "current_now").write_text("2000000\n")
    (battery / "voltage_now").write_text("10000000\n")
    times = iter([0.0, 3.0])
    meter = BatteryMeter(battery, lambda: next(times))
    assert isinstance(find_meter(tmp_path / "none", tmp_path), BatteryMeter)
    meter.start()
    assert meter.stop() == pytest.approx(60.0)
    (battery / "power_now").write_text("5000000\n")
    (battery / "status").write_text("Charging\n")
    assert find_meter(tmp_path / "none", tmp_path) is None


def test_tegrastats_power_is_averaged() -> None:
    text = "RAM 1/2MB VDD_IN 4000mW/4100mW VDD_SOC 9mW/9mW\nVDD_IN 6000mW/1mW\n"
    assert tegra_watts(text) == pytest.approx(5.0)
    assert tegra_watts("RAM 1/2MB POM_5V_IN 3000/3100\n") == pytest.approx(3.0)
    assert tegra_watts("RAM 1/2MB\n") is None


def test_no_meter_where_the_machine_tells_nothing(tmp_path: Path) -> None:
    assert find_meter(tmp_path, tmp_path) is None
