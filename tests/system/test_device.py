"""What a device is, from files as Linux has them on boards and laptops."""

from __future__ import annotations

import getpass
import socket
from dataclasses import asdict
from pathlib import Path

import pytest

from edgedec.system.device import (
    board_model,
    core_kinds,
    read_device,
    read_state,
    soc_name,
)
from edgedec.system.processors import fast_cores, linux_cores

_PI_5 = {
    "proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0",
    "proc/device-tree/serial-number": "10000000deadbeef\0",
    "proc/device-tree/compatible": "raspberrypi,5-model-b\0brcm,bcm2712\0",
    "proc/cpuinfo": "".join(
        f"processor\t: {n}\nBogoMIPS\t: 108.00\nFeatures\t: fp asimd asimddp\n"
        "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0b\n\n"
        for n in range(4)
    )
    + "Revision\t: d04170\nSerial\t\t: 10000000deadbeef\nModel\t\t: Raspberry Pi 5 Model B\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "ondemand\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "2400000\n",
    "sys/class/thermal/thermal_zone0/temp": "61700\n",
    "sys/class/thermal/cooling_device0/type": "pwm-fan\n",
    "sys/class/thermal/cooling_device0/cur_state": "3\n",
}
_RK3588 = {
    "proc/device-tree/model": "Radxa ROCK 5B\0",
    "proc/device-tree/compatible": "radxa,rock-5b\0rockchip,rk3588\0",
    "proc/cpuinfo": "".join(
        f"processor\t: {n}\nCPU implementer\t: 0x41\nCPU part\t: {part}\n\n"
        for n, part in enumerate(["0xd05"] * 4 + ["0xd0b"] * 4)
    ),
    **{
        f"sys/devices/system/cpu/cpu{n}/cpu_capacity": "530\n" if n < 4 else "1024\n"
        for n in range(8)
    },
    "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "1008000\n",
    "sys/devices/system/cpu/cpufreq/policy4/scaling_cur_freq": "2208000\n",
    "sys/class/thermal/cooling_device0/type": "cpufreq-cpu4\n",
    "sys/class/thermal/cooling_device0/cur_state": "2\n",
}
_ORIN = {
    "proc/device-tree/model": "NVIDIA Jetson Orin Nano Developer Kit\0",
    "proc/device-tree/compatible": "nvidia,p3768-0000+p3767-0005\0nvidia,p3767-0005\0"
    "nvidia,tegra234\0",
    "proc/cpuinfo": "".join(
        f"processor\t: {n}\nmodel name\t: ARMv8 Processor rev 1 (v8l)\nCPU implementer\t: 0x41\n"
        "CPU part\t: 0xd42\n\n"
        for n in range(6)
    ),
    "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "schedutil\n",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "1510400\n",
}
_M1 = {
    "proc/device-tree/model": "Apple MacBook Air (M1, 2020)\0",
    "proc/device-tree/compatible": "apple,j313\0apple,t8103\0apple,arm-platform\0",
    "proc/cpuinfo": "".join(
        f"processor\t: {n}\nCPU implementer\t: 0x61\nCPU part\t: {part}\n\n"
        for n, part in enumerate(["0x022"] * 4 + ["0x023"] * 4)
    ),
    **{
        f"sys/devices/system/cpu/cpu{n}/cpu_capacity": "483\n" if n < 4 else "1024\n"
        for n in range(8)
    },
}
_X_ELITE = {
    "proc/cpuinfo": "".join(
        f"processor\t: {n}\nCPU implementer\t: 0x51\nCPU part\t: 0x001\n\n" for n in range(12)
    ),
    "sys/class/dmi/id/sys_vendor": "LENOVO\n",
    "sys/class/dmi/id/product_name": "21N1CTO1WW\n",
    **{f"sys/devices/system/cpu/cpu{n}/cpu_capacity": "1024\n" for n in range(12)},
}
"""As public dumps of /proc and /sys show these machines, without what nothing reads."""


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def test_a_board_with_equal_cores(tmp_path: Path) -> None:
    root = tree(tmp_path, _PI_5)
    assert board_model(root) == "Raspberry Pi 5 Model B Rev 1.0"
    assert soc_name(root) == "brcm,bcm2712"
    assert core_kinds(root) == {"Cortex-A76": 4}
    state = read_state(root)
    assert state.governors == ("ondemand",)
    assert state.mhz == (2400.0, 2400.0)
    assert state.max_celsius == 61.7
    assert state.is_throttled is None  # a fan that turns slows nothing down


def test_a_board_with_two_kinds_of_cores(tmp_path: Path) -> None:
    root = tree(tmp_path, _RK3588)
    assert core_kinds(root) == {"Cortex-A76": 4, "Cortex-A55": 4}
    assert list(core_kinds(root)) == ["Cortex-A76", "Cortex-A55"]
    state = read_state(root)
    assert state.mhz == (1008.0, 2208.0)
    assert state.is_throttled is True


@pytest.mark.parametrize(
    ("files", "model", "kinds", "computing"),
    [
        (_PI_5, "Raspberry Pi 5 Model B Rev 1.0", {"Cortex-A76": 4}, range(4)),
        (_ORIN, "NVIDIA Jetson Orin Nano Developer Kit", {"Cortex-A78AE": 6}, range(6)),
        (_RK3588, "Radxa ROCK 5B", {"Cortex-A76": 4, "Cortex-A55": 4}, range(4, 8)),
        (_M1, "Apple MacBook Air (M1, 2020)", {"Firestorm (M1)": 4, "Icestorm (M1)": 4},
         range(4, 8)),
        (_X_ELITE, "LENOVO 21N1CTO1WW", {"Oryon": 12}, range(12)),
    ],
)  # fmt: skip
def test_fast_cores_of_boards_and_laptops_compute(
    tmp_path: Path, files: dict[str, str], model: str, kinds: dict[str, int], computing: range
) -> None:
    root = tree(tmp_path, files)
    assert board_model(root) == model
    assert core_kinds(root) == kinds
    everything = range(sum(kinds.values()))
    used = fast_cores(linux_cores(everything, root), everything)
    assert [core.processors for core in used] == [(n,) for n in computing]


def test_kinds_that_share_a_name_are_kept_apart(tmp_path: Path) -> None:
    """A laptop whose fast and slow cores have the name of the whole processor."""
    info = "".join(f"processor\t: {n}\nmodel name\t: Core Ultra 5 125U\n\n" for n in range(6))
    files = {"proc/cpuinfo": info, "sys/devices/cpu_atom/cpus": "2-5\n"}
    assert core_kinds(tree(tmp_path, files)) == {
        "Core Ultra 5 125U (fast)": 2,
        "Core Ultra 5 125U (slow)": 4,
    }


def test_the_chip_is_not_its_board_nor_its_platform(tmp_path: Path) -> None:
    for i, (compatible, chip) in enumerate(
        [
            ("nvidia,p3737-0000+p3701-0005\0nvidia,p3701-0005\0nvidia,tegra234\0", "tegra234"),
            ("apple,j314s\0apple,t6000\0apple,arm-platform\0", "t6000"),
        ]
    ):
        root = tree(tmp_path / str(i), {"proc/device-tree/compatible": compatible})
        assert soc_name(root).endswith(f",{chip}")


def test_a_computer_is_named_by_its_maker(tmp_path: Path) -> None:
    root = tree(tmp_path, {
        "sys/class/dmi/id/sys_vendor": "LENOVO\n",
        "sys/class/dmi/id/product_name": "21HM\n",
        "sys/class/dmi/id/product_serial": "PF4XXXXX\n",
    })  # fmt: skip
    assert board_model(root) == "LENOVO 21HM"
    nameless = tree(tmp_path / "b", {"sys/class/dmi/id/product_name": "System Product Name\n"})
    assert board_model(nameless) == ""


def test_nothing_is_known_of_an_empty_tree(tmp_path: Path) -> None:
    state = read_state(tmp_path)
    assert (state.governors, state.mhz, state.max_celsius) == ((), None, None)
    assert (state.n_throttled, state.is_throttled, state.on_battery) == (None, None, False)
    assert core_kinds(tmp_path) == {}


def test_nothing_private_is_read(tmp_path: Path) -> None:
    reported = str(asdict(read_device(tree(tmp_path, _PI_5))))
    assert "deadbeef" not in reported
    assert socket.gethostname() not in str(asdict(read_device())) or len(socket.gethostname()) < 4
    assert getpass.getuser() == "root" or getpass.getuser() not in reported
