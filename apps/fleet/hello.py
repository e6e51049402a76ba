"""What a host says of itself before it works, and whether it can work."""

from __future__ import annotations

import dataclasses
import importlib
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgedec import __version__
from edgedec.apps.measuring.installed import sources_sha256
from edgedec.apps.measuring.machine_report import examine
from edgedec.models.installation import package_version
from edgedec.system.device import read_device, read_state
from edgedec.system.machine import machine_triple

_WORK = ("distributed", "edgedec.apps.fleet.tasks")
"""What a worker imports once it works."""

_INSTALL = "run `edgedec fleet doctor FLEET --install FOLDER`"


def hello(workspace: Path) -> dict[str, Any]:
    """Returns what a fleet needs to know of this host, JSON-ready.

    clock_s: this host's clock. files: what was copied here earlier, by hash.
    """
    examined = examine()
    held = (workspace / "files").glob("*") if (workspace / "files").is_dir() else ()
    return {
        "edgedec": __version__,
        "sources_sha256": sources_sha256(),
        "distributed": package_version("distributed"),
        "triple": machine_triple(),
        "isa": examined["kernels"]["active_isa"],
        "device": dataclasses.asdict(read_device()),
        "state": dataclasses.asdict(read_state()),
        "problems": [*examined["problems"], *_missing()],
        "clock_s": time.time(),
        "free_bytes": shutil.disk_usage(workspace).free,
        "files": sorted(path.name for path in held if path.suffix != ".part"),
    }


def _missing() -> list[str]:
    """Returns what keeps the worker's own packages from being imported."""
    try:
        for name in _WORK:
            importlib.import_module(name)
    except ImportError as error:
        return [f"its Python lacks {error.name or error} of the extra `fleet`: {_INSTALL}"]
    return []


def problem_of(hello: Mapping[str, Any]) -> str | None:
    """Returns what keeps a host that says ``hello`` from working with this machine, or None."""
    if hello["edgedec"] != __version__:
        return f"it has edgedec {hello['edgedec']}, this machine {__version__}: {_INSTALL}"
    if hello.get("sources_sha256") != sources_sha256():
        return f"its edgedec {__version__} is of other sources than this machine's: {_INSTALL}"
    return next(iter(hello["problems"]), None)
