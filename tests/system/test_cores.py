"""Cores by each system's own words: hyper-threads, kinds of cores, quotas of control groups."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from edgedec.system import _linux, _macos, _windows
from edgedec.system.processors import Core, fast_cores


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


def record(efficiency: int, mask: int, group: int = 0) -> bytes:
    """Returns one core as winnt.h lays it out, in 48 bytes."""
    return struct.pack("<II2B20xHQH6x", 0, 48, 1, efficiency, 1, mask, group)


def test_windows_records() -> None:
    """Two fast cores with two hyper-threads each, two slow ones, one of another group."""
    other = struct.pack("<II8x", 3, 16)  # of another kind
    records = record(1, 0b11) + record(1, 0b1100) + other + record(0, 1 << 4) + record(0, 1, 1)
    found = _windows.parsed_cores(records)
    assert found == [(1, (0, 1)), (1, (2, 3)), (0, (4,)), (0, (64,))]
    assert _windows.parsed_cores(b"") == []


CORES = [Core(1, (0, 1)), Core(1, (2, 3)), Core(0, (4,)), Core(0, (5,))]


@pytest.mark.parametrize(
    ("cores", "allowed", "used"),
    [
        (CORES, range(6), [(0, 1), (2, 3)]),  # slow cores are left out
        (CORES, [1, 2], [(1,), (2,)]),
        (CORES, [0, 1, 4, 5], [(0, 1), (4,), (5,)]),  # one fast core is not enough
        (CORES, [4, 5], [(4,), (5,)]),
        ([Core(1024, (7,)), Core(800, (5, 6)), Core(300, (0,))], range(8), [(5, 6), (7,)]),
        ([], range(4), []),
    ],
)
def test_the_cores_that_compute(
    cores: list[Core], allowed: list[int], used: list[tuple[int, ...]]
) -> None:
    assert [core.processors for core in fast_cores(cores, allowed)] == used


def test_linux_names_siblings_and_kinds(tmp_path: Path) -> None:
    cpu = "sys/devices/system/cpu"
    write(tmp_path, {
        f"{cpu}/cpu0/topology/thread_siblings_list": "0,4\n",
        f"{cpu}/cpu1/topology/thread_siblings_list": "nonsense\n",
        f"{cpu}/cpu5/cpu_capacity": "446\n",
        "sys/devices/cpu_atom/cpus": "6-7\n",
    })  # fmt: skip
    assert [_linux.siblings(i, tmp_path) for i in (0, 1, 2)] == [(0, 4), (1,), (2,)]
    assert [_linux.rank(i, tmp_path) for i in (0, 5, 6)] == [1, 446, 0]


V2 = {"proc/self/cgroup": "0::/a/b\n"}
V1 = {"proc/self/cgroup": "4:cpu,cpuacct:/a\n3:memory:/a\n"}


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        (V2, None),
        (V2 | {"sys/fs/cgroup/a/b/memory.max": "max\n"}, None),
        (V2 | {"sys/fs/cgroup/a/b/memory.max": "3000\n", "sys/fs/cgroup/memory.max": "2000"}, 2000),
        (V2 | {"sys/fs/cgroup/memory.max": "4000"}, 4000),
        (V1 | {"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "5000\n"}, 5000),
    ],
)  # fmt: skip
def test_memory_of_control_groups(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    write(tmp_path, files)
    assert _linux.memory_limit(tmp_path) == limit


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        (V2, None),
        (V2 | {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
        (V2 | {"sys/fs/cgroup/a/b/cpu.max": "250000 100000\n"}, 2.5),
        (V2 | {"sys/fs/cgroup/a/b/cpu.max": "max 100000",
               "sys/fs/cgroup/a/cpu.max": "50000 100000"}, 0.5),
        (V2 | {"sys/fs/cgroup/a/b/cpu.max": "many"}, None),
        (V2 | {"sys/fs/cgroup/a/b/cpu.max": "100 0"}, None),
        # In a container the path is the host's, and its top is where the groups are mounted.
        (V2 | {"sys/fs/cgroup/cpu.max": "150000 50000"}, 3.0),
        (V1 | {"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "-1",
               "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000"}, None),
        (V1 | {"sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "400000",
               "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000"}, 4.0),
    ],
)  # fmt: skip
def test_quotas_of_control_groups(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    write(tmp_path, files)
    assert _linux.cpu_quota(tmp_path) == quota


def test_what_macos_says_of_its_battery() -> None:
    """As `pmset -g batt` prints it."""
    assert _macos.draws_on_battery(
        "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1)\t81%; discharging"
    )
    assert not _macos.draws_on_battery("Now drawing from 'AC Power'\n -InternalBattery-0\t100%")
    assert not _macos.draws_on_battery("")
