"""Graphs written to a folder, ready to run."""

from __future__ import annotations

from ...export.to_onnx.conftest import write_graph  # noqa: F401 (a fixture)
