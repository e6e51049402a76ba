"""What ONNX Runtime says itself goes nowhere: we report errors in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from edgedec.runtime.backends.ort import open_graph


def test_a_kernel_that_fails_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (float[n] x, int64[m] shape) => (float[k] y) { y = Reshape(x, shape) }"""
    )
    onnx.save(model, tmp_path / "model.onnx")
    session = open_graph(tmp_path / "model.onnx", 1, ["CPUExecutionProvider"])
    with pytest.raises(Exception, match="Reshape"):
        session.run(None, {"x": np.zeros(5, np.float32), "shape": np.array([7])})
    assert capfd.readouterr() == ("", "")
