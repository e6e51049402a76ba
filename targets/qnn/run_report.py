"""What Qualcomm's provider has on this machine."""

from __future__ import annotations

from typing import Any

from edgedec.models.installation import package_version
from edgedec.system.machine import architecture
from edgedec.targets.qnn.socs import SOCS

TITLE = "qualcomm"


def report() -> dict[str, Any]:
    """Returns the provider's version, the SoCs it compiles for, and what it runs on."""
    found = package_version("onnxruntime-qnn")
    here = None if found is None else "x86 library" if architecture() == "x86_64" else "NPU"
    return {"version": found, "compiles_for": list(SOCS) if found else [], "runs_on": here}


def line(found: dict[str, Any]) -> str:
    """Returns what people read of a report."""
    if found["version"] is None:
        return "missing"
    socs = ", ".join(found["compiles_for"])
    return f"{found['version']}: compiles for {socs}; runs bundles on the {found['runs_on']}"


def installs(found: dict[str, Any]) -> dict[str, str]:
    """Returns nothing: extras say what is missing."""
    return {}
