"""Verification finds what is wrong with a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.messages import save_model
from edgedec.export.to_onnx.runners import PortableRunner
from edgedec.export.verifying.verify import compare_logits, verify_logits


def written(source: Any, folder: Path) -> Path:
    model = emit_portable(source.config)
    write_weights(model, source, folder)
    save_model(model, folder / "model.onnx")
    return folder / "model.onnx"


def test_right_graph(make_source: Any, tmp_path: Path) -> None:
    source = make_source()
    report = verify_logits(PortableRunner(written(source, tmp_path), source.config), source)
    assert report["max_abs_error"] < 1e-5
    assert report["tree_max_abs_error"] < 1e-5
    assert report["top1_agreement"] == 1.0
    assert abs(report["kl_nats"]) < 1e-6


def test_graphs_that_take_chains_only(make_source: Any, tmp_path: Path) -> None:
    source = make_source()

    class Chains(PortableRunner):
        def run(self, tokens: Any, parents: Any, n_past: int = 0) -> Any:
            assert list(parents) == list(range(-1, len(tokens) - 1))
            return super().compute_logits(tokens, parents, n_past)

    runner = Chains(written(source, tmp_path), source.config)
    report = verify_logits(runner, source, False)
    assert report["max_abs_error"] < 1e-5
    assert "tree_max_abs_error" not in report


def test_wrong_weights(make_source: Any, tmp_path: Path) -> None:
    graph = written(make_source(seed=1), tmp_path)
    source = make_source(seed=0)
    report = verify_logits(PortableRunner(graph, source.config), source)
    assert report["kl_nats"] > 0.1
    assert report["top1_agreement"] < 1.0


def test_measures_by_hand() -> None:
    expected = np.log(np.array([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]], np.float32))
    logits = expected.copy()
    logits[1] = np.log(np.array([0.5, 0.25, 0.25], np.float32))
    report = compare_logits(logits, expected)
    assert report["n_tokens"] == 2
    assert report["max_abs_error"] == pytest.approx(np.log(2))
    assert report["mean_abs_error"] == pytest.approx(np.log(2) / 3)
    assert report["top1_agreement"] == 0.5
    assert report["kl_nats"] == pytest.approx(0.25 * np.log(2) / 2)
