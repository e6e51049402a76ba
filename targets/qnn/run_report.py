"""What Qualcomm's provider has on this machine."""

from __future__ import annotations

from typing import Any

from edgedec.models.installation import package_version
from edgedec.system.machine import architecture
from edgedec.targets.qnn.socs import SOCS

TITLE = "qualcomm"


def report() -> dict[str, Any]:
    """Returns the provider's version, the SoCs it compiles for, and what it runs on."""
    version = package_version("onnxruntime-qnn")
    here = None if version is None else "x86 library" if architecture() == "x86_64" else "NPU"
    return {"version": version, "compiles_for": list(SOCS) if version else [], "runs_on": here}


def line(version: dict[str, Any]) -> str:
    """Returns what people read of a report."""
    if version["version"] is None:
        return "missing"
    socs = ", ".join(version["compiles_for"])
    return f"{version['version']}: compiles for {socs}; runs bundles on the {version['runs_on']}"


def installs(version: dict[str, Any]) -> dict[str, str]:
    """Returns nothing: extras say what is missing."""
    return {}
