"""Which GPUs of NVIDIA are in this machine."""

from __future__ import annotations

import dataclasses
from typing import Any

from edgedec.kernels.cuda_driver import CudaError, find_gpus

TITLE = "NVIDIA GPUs"


def report() -> dict[str, Any]:
    """Returns the GPUs, or what is missing."""
    try:
        gpus = find_gpus()
    except CudaError as error:
        return {"gpus": [], "missing": str(error)}
    missing = None if gpus else "the driver finds no GPU"
    return {"gpus": [dataclasses.asdict(gpu) for gpu in gpus], "missing": missing}


def line(found: dict[str, Any]) -> str:
    """Returns name, architecture and memory of each GPU, or what is missing."""
    texts = (f"{g['name']} ({g['arch']}, {g['n_bytes'] / 1e9:.1f} GB)" for g in found["gpus"])
    return ", ".join(texts) or f"none: {found['missing']}"


def installs(found: dict[str, Any]) -> dict[str, str]:
    """Returns nothing: a driver comes from the system."""
    return {}
