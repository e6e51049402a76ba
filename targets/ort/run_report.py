"""What ONNX Runtime has on this machine."""

from __future__ import annotations

from typing import Any

from edgedec.targets.places_report import PlacesReport

TITLE = "onnxruntime"

_OF_PLACES = PlacesReport("ort", "onnxruntime", "providers", "provider")
line, installs = _OF_PLACES.line, _OF_PLACES.installs


def report() -> dict[str, Any]:
    """Returns version and providers, each with what brings it, None where it is here."""
    try:
        from edgedec.targets.ort.run_places import available
    except ImportError:
        return _OF_PLACES.report(None)
    return _OF_PLACES.report(available())
