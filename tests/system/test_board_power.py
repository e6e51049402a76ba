"""Power and throttling of boards, from what their kernels and tools write."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.system.device import pi_throttled, read_state
from edgedec.system.energy import InaMeter, find_meter, ina_watts, tegra_watts


@pytest.mark.parametrize(
    ("text", "is_throttled"),
    [
        ("throttled=0x0\n", False),
        ("0\n", False),
        ("throttled=0x50000\n", False),  # it happened earlier
        ("throttled=0x50005\n", True),  # under-voltage, throttled
        ("50005", True),
        ("throttled=0x1\n", False),  # under-voltage alone slows nothing down
        ("throttled=0x80008\n", True),  # the soft limit of temperature
        ("throttled=0xe0002\n", True),
        ('error=1 error_msg="Command not registered"', None),
        ("", None),
        ("0x" + "f" * 40, None),
    ],
)
def test_what_vcgencmd_says(text: str, is_throttled: bool | None) -> None:
    assert pi_throttled(text) is is_throttled


def test_the_kernel_of_a_pi_says_the_same(tmp_path: Path) -> None:
    firmware = tmp_path / "sys/devices/platform/soc@107c000000/soc@107c000000:firmware"
    firmware.mkdir(parents=True)
    (firmware / "get_throttled").write_text("50005\n")
    assert read_state(tmp_path).is_throttled is True
    (firmware / "get_throttled").write_text("50000\n")
    assert read_state(tmp_path).is_throttled is False


def sensor(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(content + "\n")
    return folder


def test_the_sensor_of_a_jetson_orin(tmp_path: Path) -> None:
    place = sensor(
        tmp_path / "hwmon1", name="ina3221", in1_label="VDD_IN", in2_label="VDD_CPU_GPU_CV",
        in1_input="5032", curr1_input="1232", in2_input="5032", curr2_input="400",
    )  # fmt: skip
    watts = ina_watts(place)
    assert watts == pytest.approx(5.032 * 1.232)
    part = sensor(
        tmp_path / "hwmon2", name="ina3221", in1_label="VDD_GPU", in1_input="5", curr1_input="9"
    )
    assert ina_watts(part) is None  # a part of the board is not the board


def test_other_sensors(tmp_path: Path) -> None:
    assert ina_watts(sensor(tmp_path / "a", name="ina226", power1_input="4250000")) == 4.25
    assert ina_watts(sensor(tmp_path / "b", name="coretemp", power1_input="4250000")) is None
    assert ina_watts(sensor(tmp_path / "c", name="ina219", in1_input="5000")) is None
    assert ina_watts(sensor(tmp_path / "d", name="ina219", power1_input="much")) is None
    assert ina_watts(tmp_path / "none") is None


def test_a_meter_of_a_sensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no tegrastats
    place = sensor(tmp_path / "hwmon/hwmon0", name="ina226", power1_input="4000000")
    meter = find_meter(tmp_path / "none", tmp_path / "none", tmp_path / "hwmon")
    assert isinstance(meter, InaMeter)
    assert meter.name == "ina226 sensor, rail 1"
    meter.start()
    joules = meter.stop()
    assert joules is not None
    assert joules >= 0
    (place / "power1_input").unlink()
    meter.start()
    assert meter.stop() is None
    meter.close()


def test_recorded_lines_of_tegrastats() -> None:
    orin = (
        "11-26-2026 09:12:01 RAM 3271/7620MB (lfb 4x4MB) SWAP 0/3810MB (cached 0MB) "
        "CPU [12%@1510,3%@1510,0%@1510,1%@1510,off,off] GR3D_FREQ 0% cpu@49.2C soc0@48.1C "
        "VDD_IN 5036mW/4956mW VDD_CPU_GPU_CV 512mW/480mW VDD_SOC 1423mW/1410mW\n"
    )
    nano = "RAM 1500/3956MB POM_5V_IN 2150/2100 POM_5V_GPU 40/40 POM_5V_CPU 300/290\n"
    assert tegra_watts(orin) == pytest.approx(5.036)
    assert tegra_watts(nano) == pytest.approx(2.15)
    assert tegra_watts("RAM 1/2MB\n") is None
