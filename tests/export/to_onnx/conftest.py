"""Graphs written to a folder, ready to run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.messages import ModelProto, save_model


@pytest.fixture
def write_graph(tmp_path: Path) -> Callable[[ModelProto, Any], Path]:
    """Returns a function that writes graph and weights and returns the graph's path."""

    def write(model: ModelProto, source: Any) -> Path:
        folder = tmp_path / f"graph_{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        write_weights(model, source, folder)
        save_model(model, folder / "model.onnx")
        onnx.checker.check_model(str(folder / "model.onnx"), full_check=True)
        return folder / "model.onnx"

    return write
