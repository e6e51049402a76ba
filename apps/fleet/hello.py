"""What a host says of itself before it works."""

from __future__ import annotations

import dataclasses
import shutil
import time
from pathlib import Path
from typing import Any

from edgedec import __version__
from edgedec.apps.doctor import examine
from edgedec.apps.measuring.installed import version
from edgedec.system.device import read_device, read_state
from edgedec.system.machine import machine_triple


def hello(workspace: Path) -> dict[str, Any]:
    """Returns what a fleet needs to know of this host, JSON-ready.

    clock_s: this host's clock. files: what was copied here earlier, by hash.
    """
    examined = examine()
    held = (workspace / "files").glob("*") if (workspace / "files").is_dir() else ()
    return {
        "edgedec": __version__,
        "distributed": version("distributed"),
        "triple": machine_triple(),
        "isa": examined["kernels"]["active_isa"],
        "device": dataclasses.asdict(read_device()),
        "state": dataclasses.asdict(read_state()),
        "problems": examined["problems"],
        "clock_s": time.time(),
        "free_bytes": shutil.disk_usage(workspace).free,
        "files": sorted(path.name for path in held if path.suffix != ".part"),
    }
