"""Which devices of OpenVINO are here."""

from __future__ import annotations


def available() -> frozenset[str]:
    """Returns the kinds of devices that OpenVINO finds; none where it is not installed."""
    try:
        import openvino
    except ImportError:
        return frozenset()
    return frozenset(name.partition(".")[0] for name in openvino.Core().available_devices)
