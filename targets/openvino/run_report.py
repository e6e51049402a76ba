"""What OpenVINO has on this machine."""

from __future__ import annotations

from typing import Any

from edgedec.models.installation import package_version
from edgedec.targets import device_target, missing_places
from edgedec.targets.openvino.run_places import available

TITLE = "openvino"


def report() -> dict[str, Any]:
    """Returns version and devices, each with what brings it, None where it is here."""
    places = missing_places(device_target("openvino"), available())
    return {"version": package_version("openvino"), "devices": places}


def line(found: dict[str, Any]) -> str:
    """Returns what people read of a report."""
    here = ", ".join(name for name, install in found["devices"].items() if install is None)
    return f"{found['version'] or 'missing'}: devices {here or 'none'}"


def installs(found: dict[str, Any]) -> dict[str, str]:
    """Returns what is missing, and the command that brings it."""
    return {f"OpenVINO device {name}": how for name, how in found["devices"].items() if how}
