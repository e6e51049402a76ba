"""Which GPUs of NVIDIA are in this machine."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgedec.kernels.cuda_driver import CudaError, driver_version, find_gpus

TITLE = "NVIDIA GPUs"


def report() -> dict[str, Any]:
    """Returns the GPUs and the driver's version of CUDA, or what is missing."""
    try:
        gpus, version = find_gpus(), driver_version()
    except CudaError as error:
        return {"gpus": [], "cuda": None, "missing": str(error)}
    missing = None if gpus else "the driver finds no GPU"
    facts = [dataclasses.asdict(gpu) for gpu in gpus]
    return {"gpus": facts, "cuda": version, "missing": missing}


def line(facts: dict[str, Any]) -> str:
    """Returns name, architecture and memory of each GPU and the driver, or what is missing."""
    if not facts["gpus"]:
        return f"none: {facts['missing']}"
    texts = (f"{g['name']} ({g['arch']}, {g['n_bytes'] / 1e9:.1f} GB)" for g in facts["gpus"])
    return f"{', '.join(texts)}; the driver supports CUDA {facts['cuda']}"


def installs(facts: dict[str, Any]) -> dict[str, str]:
    """Returns nothing: a driver comes from the system."""
    return {}
