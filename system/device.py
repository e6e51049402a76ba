"""What a device is, and what bears on its speed while something is measured.

Nothing here identifies one machine among its kind: no serial numbers, no names of users or hosts.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from edgedec.system import _linux
from edgedec.system.machine import architecture, read_cpu, system_name
from edgedec.system.memory import memory_bytes
from edgedec.system.power import PowerSource

_ARM, _QUALCOMM, _APPLE = "0x41", "0x51", "0x61"
_CORE_NAMES = {
    (_ARM, "0xd03"): "Cortex-A53",
    (_ARM, "0xd04"): "Cortex-A35",
    (_ARM, "0xd05"): "Cortex-A55",
    (_ARM, "0xd07"): "Cortex-A57",
    (_ARM, "0xd08"): "Cortex-A72",
    (_ARM, "0xd09"): "Cortex-A73",
    (_ARM, "0xd0a"): "Cortex-A75",
    (_ARM, "0xd0b"): "Cortex-A76",
    (_ARM, "0xd0c"): "Neoverse-N1",
    (_ARM, "0xd0d"): "Cortex-A77",
    (_ARM, "0xd40"): "Neoverse-V1",
    (_ARM, "0xd41"): "Cortex-A78",
    (_ARM, "0xd42"): "Cortex-A78AE",
    (_ARM, "0xd44"): "Cortex-X1",
    (_ARM, "0xd46"): "Cortex-A510",
    (_ARM, "0xd47"): "Cortex-A710",
    (_ARM, "0xd48"): "Cortex-X2",
    (_ARM, "0xd49"): "Neoverse-N2",
    (_ARM, "0xd4d"): "Cortex-A715",
    (_ARM, "0xd4e"): "Cortex-X3",
    (_ARM, "0xd4f"): "Neoverse-V2",
    (_ARM, "0xd80"): "Cortex-A520",
    (_ARM, "0xd81"): "Cortex-A720",
    (_ARM, "0xd82"): "Cortex-X4",
    (_QUALCOMM, "0x001"): "Oryon",
    (_QUALCOMM, "0x802"): "Kryo 3xx Gold",
    (_QUALCOMM, "0x803"): "Kryo 3xx Silver",
    (_QUALCOMM, "0x804"): "Kryo 4xx Gold",
    (_QUALCOMM, "0x805"): "Kryo 4xx Silver",
    (_APPLE, "0x022"): "Icestorm (M1)",
    (_APPLE, "0x023"): "Firestorm (M1)",
    (_APPLE, "0x024"): "Icestorm (M1 Pro)",
    (_APPLE, "0x025"): "Firestorm (M1 Pro)",
    (_APPLE, "0x028"): "Icestorm (M1 Max)",
    (_APPLE, "0x029"): "Firestorm (M1 Max)",
    (_APPLE, "0x032"): "Blizzard (M2)",
    (_APPLE, "0x033"): "Avalanche (M2)",
    (_APPLE, "0x034"): "Blizzard (M2 Pro)",
    (_APPLE, "0x035"): "Avalanche (M2 Pro)",
    (_APPLE, "0x038"): "Blizzard (M2 Max)",
    (_APPLE, "0x039"): "Avalanche (M2 Max)",
}
"""Implementer and part, as /proc/cpuinfo says them. Source: MIDR_EL1, as lscpu lists it."""

_NO_MODELS = ("", "to be filled by o.e.m.", "system product name", "default string", "none")
_SOC_VENDORS = ("brcm", "nvidia", "rockchip", "qcom", "apple", "amlogic", "mediatek", "samsung",
                "allwinner", "fsl", "ti", "xlnx", "starfive")  # fmt: skip


@dataclass(frozen=True)
class Device:
    """What a device is. Empty or None where the system does not tell.

    model: of the whole machine or board. soc: of the chip, where that is not the processor.
    cores: kind of core -> how many processors are of that kind.
    """

    model: str
    soc: str
    cpu: str
    architecture: str
    cores: dict[str, int]
    n_usable: int
    flags: tuple[str, ...]
    memory_bytes: int
    system: str
    kernel: str
    libc: str


@dataclass(frozen=True)
class DeviceState:
    """What bears on speed right now. Empty or None where the system does not tell.

    governors: those of all processors, each once. mhz: of the slowest and the fastest processor.
    max_celsius: of the hottest sensor. n_throttled: times that processors were slowed down for
    heat since the start of the system. is_throttled: the board says that it slows down now.
    """

    governors: tuple[str, ...]
    mhz: tuple[float, float] | None
    max_celsius: float | None
    n_throttled: int | None
    is_throttled: bool | None
    on_battery: bool


def read_device(root: Path = _linux.ROOT) -> Device:
    """Returns what this device is. root: where `/proc` and `/sys` of Linux lie."""
    cpu, (total, _) = read_cpu(), memory_bytes()
    libc = " ".join(part for part in platform.libc_ver() if part)
    cores = core_kinds(root) if sys.platform == "linux" else {}
    return Device(
        model=board_model(root),
        soc=soc_name(root),
        cpu=cpu.model,
        architecture=architecture(),
        cores=cores or {cpu.model: cpu.n_logical},
        n_usable=cpu.n_usable,
        flags=cpu.flags,
        memory_bytes=total,
        system=system_name(),
        kernel=platform.release(),
        libc=libc,
    )


def read_state(root: Path = _linux.ROOT) -> DeviceState:
    """Returns the state of this device now. root: as in `read_device`."""
    policies = sorted((root / "sys/devices/system/cpu/cpufreq").glob("policy[0-9]*"))
    governors = {_linux.text(policy / "scaling_governor") for policy in policies} - {""}
    khz = [_number(policy / "scaling_cur_freq") for policy in policies]
    known = [value / 1000 for value in khz if value]
    return DeviceState(
        governors=tuple(sorted(governors)),
        mhz=(min(known), max(known)) if known else None,
        max_celsius=_max_celsius(root),
        n_throttled=_n_throttled(root),
        is_throttled=_is_throttled(root),
        on_battery=PowerSource(root / "sys/class/power_supply").is_battery,
    )


def board_model(root: Path = _linux.ROOT) -> str:
    """Returns the product name of a board or computer, without its serial number."""
    model = _linux.text(root / "proc/device-tree/model").strip("\0 \n")
    if model:
        return model
    dmi = root / "sys/class/dmi/id"
    vendor, product = _linux.text(dmi / "sys_vendor"), _linux.text(dmi / "product_name")
    named = [part for part in (vendor, product) if part.lower() not in _NO_MODELS]
    return " ".join(named)


def soc_name(root: Path = _linux.ROOT) -> str:
    """Returns the name of a system on chip, such as ``brcm,bcm2712`` or ``tegra234``."""
    names = _linux.text(root / "proc/device-tree/compatible").split("\0")
    chips = [
        name
        for name in names
        if name.partition(",")[0] in _SOC_VENDORS and not name.endswith("-platform")
    ]
    # The most general name comes last: a board of the chip's maker stands before its chip.
    return chips[-1] if chips else ""


def core_kinds(root: Path = _linux.ROOT) -> dict[str, int]:
    """Returns kind of core -> processors of that kind, by name, the fastest kind first."""
    counts: Counter[tuple[int, str]] = Counter()
    for block in re.split(r"\n\s*\n", _linux.text(root / "proc/cpuinfo")):
        pairs = (line.partition(":") for line in block.splitlines())
        facts = {key.strip(): value.strip() for key, _, value in pairs}
        if not facts.get("processor", "").isdecimal():
            continue
        part = facts.get("CPU implementer", ""), facts.get("CPU part", "")
        name = _CORE_NAMES.get(part) or facts.get("model name") or " ".join(part).strip()
        counts[_linux.rank(int(facts["processor"]), root), name or "unknown"] += 1
    ranks = {rank for rank, _ in counts}
    named: dict[str, int] = {}
    for (rank, name), n in sorted(counts.items(), reverse=True):
        several = sum(other == name for _, other in counts) > 1
        label = f"{name} ({_place(rank, ranks)})" if several else name
        named[label] = named.get(label, 0) + n
    return named


def _place(rank: int, ranks: set[int]) -> str:
    return "fast" if rank == max(ranks) else "slow" if rank == min(ranks) else "middle"


def _max_celsius(root: Path) -> float | None:
    zones = (root / "sys/class/thermal").glob("thermal_zone*/temp")
    sensors = (root / "sys/class/hwmon").glob("hwmon*/temp*_input")
    temperatures = [
        value / 1000 for place in (*zones, *sensors) if (value := _number(place)) is not None
    ]
    likely = [
        value for value in temperatures if 0 < value < 150
    ]  # sensors that are off say -274 or 0
    return max(likely, default=None)


def _n_throttled(root: Path) -> int | None:
    """Returns how often Intel's cores were slowed down for heat; others do not count it."""
    places = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle")
    counts = [_number(place / "core_throttle_count") for place in places]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def pi_throttled(text: str) -> bool | None:
    """Returns whether a Raspberry Pi's firmware slows the processor down right now.

    text: ``50005`` or ``throttled=0x50005``, as the kernel and vcgencmd write it; None if it is
    anything else.

    Source: the documentation of vcgencmd, get_throttled: bit 1 says that the frequency is capped,
    2 that the processor is throttled, 3 that the soft limit of temperature is reached. Bits 16 and
    up say what happened since the start.
    """
    match = re.fullmatch(r"(?:throttled=)?(?:0x)?([0-9a-fA-F]{1,8})", text.strip())
    return bool(int(match[1], 16) & 0b1110) if match else None


def _pi_firmware(root: Path) -> str:
    """Returns what a Raspberry Pi's firmware says of throttling; empty on other machines."""
    places = sorted((root / "sys/devices/platform").glob("soc*/*firmware/get_throttled"))
    if places:
        return _linux.text(places[0])
    if root != _linux.ROOT or (program := shutil.which("vcgencmd")) is None:
        return ""
    try:
        return subprocess.run(
            [program, "get_throttled"], capture_output=True, text=True, timeout=5, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _is_throttled(root: Path) -> bool | None:
    """Returns whether firmware or a cooling device slows the processor down right now."""
    of_pi = pi_throttled(_pi_firmware(root))
    states = [] if of_pi is None else [of_pi]
    for place in (root / "sys/class/thermal").glob("cooling_device*"):
        kind = _linux.text(place / "type").lower()
        state = _number(place / "cur_state")
        if state is not None and ("cpufreq" in kind or kind == "processor"):
            states.append(state > 0)
    return any(states) if states else None


def _number(path: Path) -> int | None:
    text = _linux.text(path)
    return int(text) if re.fullmatch(r"-?\d+", text) else None
