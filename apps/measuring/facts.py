"""What a measurement was made with."""

from __future__ import annotations

import dataclasses
import hashlib
import platform
from typing import Any

from edgedec import __version__
from edgedec.kernels import cpu, library
from edgedec.system.machine import read_cpu


def device_facts() -> dict[str, Any]:
    """Returns what the machine is."""
    cpu = read_cpu()
    return {**dataclasses.asdict(cpu), "platform": platform.platform()}


def build_facts() -> dict[str, Any]:
    """Returns which versions run."""
    import onnxruntime  # its package has another name for each kind of device

    kernels = hashlib.sha256(library.library_path().read_bytes()).hexdigest()
    return {
        "edgedec": __version__,
        "kernels_sha256": kernels[:16],
        "isa": cpu.active_isa(),
        "onnxruntime": onnxruntime.__version__,
        "python": platform.python_version(),
    }
