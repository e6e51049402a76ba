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


TOP = "sys/fs/cgroup"
DOCKER = "/docker/" + "0123abcd" * 8
POD = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12.slice"
SESSION = "/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope"


def v1(folder: str, quota: int, period: int = 100_000) -> dict[str, str]:
    """Returns the files of a group with a quota of version 1."""
    names = {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": period}
    return {f"{folder}/{name}": f"{value}\n" for name, value in names.items()}


def process(groups: str, *mounts: str) -> dict[str, str]:
    """Returns what Linux tells of a process."""
    return {"proc/self/cgroup": groups, "proc/self/mountinfo": "".join(f"{m}\n" for m in mounts)}


def mount_v1(point: str, options: str, top: str = "/") -> str:
    return f"31 23 0:26 {top} {point} rw,nosuid shared:9 - cgroup cgroup rw,{options}"


def mount_v2(point: str, top: str = "/") -> str:
    return f"30 23 0:25 {top} {point} ro,nosuid,nodev - cgroup2 cgroup rw,nsdelegate"


RECORDED: dict[str, tuple[dict[str, str], float | None]] = {
    "docker, version 2, own namespace": (process("0::/\n", mount_v2("/sys/fs/cgroup"))
        | {f"{TOP}/cpu.max": "100000 100000\n"}, 1.0),
    "docker, version 2, the host's namespace": (
        process("0::/system.slice/docker-1.scope\n", mount_v2(f"/{TOP}"))
        | {f"{TOP}/system.slice/docker-1.scope/cpu.max": "150000 100000\n"}, 1.5),
    "docker, version 1": (
        process(f"4:cpu,cpuacct:{DOCKER}\n1:name=systemd:{DOCKER}\n0::/\n",
                mount_v1(f"/{TOP}/cpu,cpuacct", "cpu,cpuacct", DOCKER))
        | v1(f"{TOP}/cpu,cpuacct", 50_000), 0.5),
    "docker, version 1, and no list of mounts": (
        {"proc/self/cgroup": f"4:cpu,cpuacct:{DOCKER}\n"} | v1(f"{TOP}/cpu,cpuacct", 200_000), 2.0),
    "centos 7 names the controllers the other way round": (
        process("10:cpuacct,cpu:/a\n", mount_v1(f"/{TOP}/cpu,cpuacct", "cpuacct,cpu"))
        | v1(f"{TOP}/cpu,cpuacct/a", 300_000), 3.0),
    "and by a link": (
        {"proc/self/cgroup": "10:cpuacct,cpu:/a\n"} | v1(f"{TOP}/cpu/a", 300_000), 3.0),
    "a folder for each controller": (
        process("2:cpuacct:/\n1:cpu:/\n0::/\n", mount_v1(f"/{TOP}/cpuacct", "cpuacct"),
                mount_v1(f"/{TOP}/cpu", "cpu")) | v1(f"{TOP}/cpu", 100_000)
        | v1(f"{TOP}/cpuacct", 1), 1.0),
    "kubernetes, version 1": (
        process(f"5:cpu:{POD}/c\n", mount_v1(f"/{TOP}/cpu", "cpu", f"{POD}/c"))
        | v1(f"{TOP}/cpu", 250_000), 2.5),
    "kubernetes, version 2, from the node": (
        process(f"0::{POD}/c\n", mount_v2(f"/{TOP}"))
        | {f"{TOP}{POD}/cpu.max": "400000 100000", f"{TOP}{POD}/c/cpu.max": "max 100000"}, 4.0),
    "the pod's own namespace": (process("0::/\n", mount_v2(f"/{TOP}"))
        | {f"{TOP}/cpu.max": "20000 100000"}, 0.2),
    "a session of systemd": (process(f"0::{SESSION}\n", mount_v2(f"/{TOP}"))
        | {f"{TOP}{SESSION}/cpu.max": "100000 100000"}, 1.0),
    "the slice of a user": (process(f"0::{SESSION}\n", mount_v2(f"/{TOP}"))
        | {f"{TOP}/user.slice/user-1000.slice/cpu.max": "200000 100000",
           f"{TOP}{SESSION}/cpu.max": "max 100000"}, 2.0),
    "the smallest of all above": (process("0::/a/b/c\n", mount_v2(f"/{TOP}"))
        | {f"{TOP}/a/cpu.max": "400000 100000", f"{TOP}/a/b/cpu.max": "100000 100000",
           f"{TOP}/a/b/c/cpu.max": "300000 100000"}, 1.0),
    "a sibling's": (process("0::/a/b\n", mount_v2(f"/{TOP}"))
        | {f"{TOP}/a/c/cpu.max": "100000 100000"}, None),
    "both, quota in version 1": (
        process("3:cpu,cpuacct:/a\n0::/a\n", mount_v1(f"/{TOP}/cpu,cpuacct", "cpu,cpuacct"),
                mount_v2(f"/{TOP}/unified")) | v1(f"{TOP}/cpu,cpuacct/a", 150_000), 1.5),
    "both, quota in version 2": (
        process("3:memory:/a\n0::/a\n", mount_v1(f"/{TOP}/memory", "memory"),
                mount_v2(f"/{TOP}/unified"))
        | {f"{TOP}/unified/a/cpu.max": "100000 50000"}, 2.0),
    "both, and no list of mounts": ({"proc/self/cgroup": "3:memory:/a\n0::/a\n"}
        | {f"{TOP}/unified/a/cpu.max": "100000 50000"}, 2.0),
    "Android": (process("3:cpu:/top\n0::/\n", mount_v1("/dev/cpuctl", "cpu"),
                        mount_v2("/sys/fs/cgroup")) | v1("dev/cpuctl/top", 100_000), 1.0),
    "mounted somewhere else": (process("0::/a\n", mount_v2("/mnt/groups"))
        | {"mnt/groups/a/cpu.max": "100000 100000"}, 1.0),
    "a part is mounted": (process("0::/a/b\n", mount_v2(f"/{TOP}", "/a"))
        | {f"{TOP}/b/cpu.max": "100000 100000"}, 1.0),
    "another part is mounted": (process("0::/ab\n", mount_v2(f"/{TOP}", "/a"))
        | {f"{TOP}/cpu.max": "100000 100000", f"{TOP}/b/cpu.max": "1 100000"}, 1.0),
    "outside of the namespace": (process("0::/../../x\n", mount_v2(f"/{TOP}"))
        | {f"{TOP}/cpu.max": "100000 100000", "x/cpu.max": "1 100000"}, 1.0),
    "LXC": (process("0::/.lxc\n", mount_v2(f"/{TOP}"))
        | {f"{TOP}/.lxc/cpu.max": "max 100000", f"{TOP}/cpu.max": "350000 100000"}, 3.5),
    "a path with a colon": (process("0::/a:b\n", mount_v2(f"/{TOP}"))
        | {f"{TOP}/a:b/cpu.max": "100000 100000"}, 1.0),
    "a short period": (process("0::/a\n", mount_v2(f"/{TOP}"))
        | {f"{TOP}/a/cpu.max": "7500 5000"}, 1.5),
    "a quota and no period": (process("0::/a\n", mount_v2(f"/{TOP}"))
        | {f"{TOP}/a/cpu.max": "50000"}, 0.5),
    "no quota, version 1": (process("1:cpu:/\n", mount_v1(f"/{TOP}/cpu", "cpu"))
        | v1(f"{TOP}/cpu", -1), None),
    "a quota above, version 1": (process("1:cpu:/a/b\n", mount_v1(f"/{TOP}/cpu", "cpu"))
        | v1(f"{TOP}/cpu/a", 100_000) | v1(f"{TOP}/cpu/a/b", -1), 1.0),
    "a period of nothing, version 1": (process("1:cpu:/\n", mount_v1(f"/{TOP}/cpu", "cpu"))
        | v1(f"{TOP}/cpu", 100_000, 0), None),
    "other controllers": (process("1:cpuset:/a\n2:cpuacct:/a\n") | v1(f"{TOP}/cpuset/a", 1)
        | v1(f"{TOP}/cpuacct/a", 1), None),
    "broken lines": (process("\n::\nx\n0::\n", "a - cgroup2", "1 2 3 / - cgroup", " - ")
        | {f"{TOP}/cpu.max": "100000 100000"}, 1.0),
}  # fmt: skip


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
        *RECORDED.values(),
    ],
    ids=lambda value: "" if isinstance(value, dict) else str(value),
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
