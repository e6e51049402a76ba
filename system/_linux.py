"""What Linux says in `/proc` and `/sys`. Each function takes the folder that these lie in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def text(path: Path) -> str:
    """Returns a file's text, empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def numbers(ranges: str) -> tuple[int, ...]:
    """Returns the numbers of a list such as ``0-3,8``; none if it is anything else."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", ranges.strip()):
        return ()
    pairs = (part.partition("-") for part in ranges.strip().split(","))
    return tuple(n for first, _, last in pairs for n in range(int(first), int(last or first) + 1))


def siblings(processor: int, root: Path = ROOT) -> tuple[int, ...]:
    """Returns the processors of a processor's core, itself among them."""
    place = root / f"sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list"
    return numbers(text(place)) or (processor,)


def rank(processor: int, root: Path = ROOT) -> int:
    """Returns how fast a processor's kind of core is: a number to compare with others."""
    capacity = text(root / f"sys/devices/system/cpu/cpu{processor}/cpu_capacity")
    if capacity.isdecimal():
        return int(capacity)
    return 0 if processor in numbers(text(root / "sys/devices/cpu_atom/cpus")) else 1


def cpu_quota(root: Path = ROOT) -> float | None:
    """Returns how many processors' time the control groups of this process grant; None: any.

    Source: the kernel's admin-guide/cgroup-v2.rst (cpu.max), scheduler/sched-bwc.rst (version 1).
    """
    quotas = [
        _quota_v1(group) if version == 1 else _quota_v2(group)
        for group, version in _groups("cpu", root)
    ]
    granted = [quota for quota in quotas if quota is not None]
    return min(granted, default=None)


def memory_limit(root: Path = ROOT) -> int | None:
    """Returns the bytes of memory that the control groups of this process grant; None: any.

    Source: the kernel's admin-guide/cgroup-v2.rst (memory.max), cgroup-v1/memory.rst.
    """
    names = {1: "memory.limit_in_bytes", 2: "memory.max"}
    limits = [text(group / names[version]) for group, version in _groups("memory", root)]
    return min((int(limit) for limit in limits if limit.isdecimal()), default=None)


def _groups(controller: str, root: Path) -> Iterator[tuple[Path, int]]:
    """Yields the folder and version of each control group that holds this process, in any depth."""
    mounts = list(_mounts(controller, root))
    for line in text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        version = 1 if controllers else 2
        folders = (controllers, controller) if controllers else ("", "unified")
        usual = [(root / "sys/fs/cgroup" / folder, "/") for folder in folders]
        mounts_ = [(top, mounted) for kind, top, mounted in mounts if kind == version]
        for top, mounted in mounts_ or usual:
            folder = top / _within(path, mounted)
            for group in (folder, *folder.parents):
                if group.is_relative_to(top):
                    yield group, version


def _mounts(controller: str, root: Path) -> Iterator[tuple[int, Path, str]]:
    """Yields version, folder and topmost group of the mounts that show groups of ``controller``.

    Source: proc_pid_mountinfo(5).
    """
    for line in text(root / "proc/self/mountinfo").splitlines():
        before, _, behind = line.partition(" - ")
        fields, (kind, _, options) = before.split(), (*behind.split(), "", "", "")[:3]
        is_first = kind == "cgroup" and controller in options.split(",")
        if len(fields) > 4 and (is_first or kind == "cgroup2"):
            yield 1 if is_first else 2, root / fields[4].lstrip("/"), fields[3]


def _within(path: str, mounted: str) -> str:
    """Returns where the group ``path`` lies below the group ``mounted``; empty if it does not.

    In a container the path may be the host's, and its top is where the groups are mounted.
    """
    parts = Path(path).parts
    if ".." in parts or not Path(path).is_relative_to(mounted):
        return ""
    return str(Path(path).relative_to(mounted))


def _quota_v2(group: Path) -> float | None:
    quota, _, period = text(group / "cpu.max").partition(" ")
    return _share(quota, period or "100000")


def _quota_v1(group: Path) -> float | None:
    return _share(text(group / "cpu.cfs_quota_us"), text(group / "cpu.cfs_period_us"))


def _share(quota_us: str, period_us: str) -> float | None:
    if not (quota_us.isdecimal() and period_us.isdecimal() and int(period_us)):
        return None
    return int(quota_us) / int(period_us)
