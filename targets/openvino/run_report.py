"""What OpenVINO has on this machine."""

from __future__ import annotations

from typing import Any

from edgedec.targets.openvino.run_places import available
from edgedec.targets.places_report import PlacesReport

TITLE = "openvino"

_OF_PLACES = PlacesReport("openvino", "openvino", "devices", "OpenVINO device")
line, installs = _OF_PLACES.line, _OF_PLACES.installs


def report() -> dict[str, Any]:
    """Returns version and devices, each with what brings it, None where it is here."""
    return _OF_PLACES.report(available())
