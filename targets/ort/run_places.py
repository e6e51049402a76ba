"""Which providers of ONNX Runtime are here."""

from __future__ import annotations

import onnxruntime


def available() -> frozenset[str]:
    """Returns the providers that this installation of ONNX Runtime has, as it calls them."""
    return frozenset(onnxruntime.get_available_providers())
