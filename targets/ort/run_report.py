"""What ONNX Runtime has on this machine."""

from __future__ import annotations

from typing import Any

from edgedec.models.installation import package_version
from edgedec.targets import device_target, missing_places

TITLE = "onnxruntime"


def report() -> dict[str, Any]:
    """Returns version and providers, each with what brings it, None where it is here."""
    try:
        from edgedec.targets.ort.run_places import available
    except ImportError:
        return {"version": package_version("onnxruntime"), "providers": {}}
    places = missing_places(device_target("ort"), available())
    return {"version": package_version("onnxruntime"), "providers": places}


def line(found: dict[str, Any]) -> str:
    """Returns what people read of a report."""
    here = ", ".join(name for name, install in found["providers"].items() if install is None)
    return f"{found['version'] or 'missing'}: providers {here or 'none'}"


def installs(found: dict[str, Any]) -> dict[str, str]:
    """Returns what is missing, and the command that brings it."""
    return {f"provider {name}": how for name, how in found["providers"].items() if how}
