"""Mixtures of experts, several texts side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgedec.export.quantising.calibration.rows import SideBySideOps
from edgedec.export.quantising.quantise import Quantized
from edgedec.models.families import find_family, matrices
from edgedec.models.reference import ReferenceModel

MIXTURE = {"family": "qwen3_moe", "has_qk_norm": True, "n_experts": 5, "n_experts_used": 2}


def test_texts_side_by_side_are_what_each_model_computes(make_source: Any) -> None:
    """Rows of an expert come from both models; each is multiplied with the matrix of its own."""
    source = make_source(**MIXTURE)
    quantised = Quantized(source, "int8")
    texts = [np.array(ids, np.int64) for ids in ([3, 80, 7, 7, 41], [0, 12, 66, 5, 9, 31])]
    seen: dict[str, int] = {}

    def on_inputs(name: str, inputs: Any) -> None:
        seen[name] = len(inputs)
        assert inputs.shape[1] == matrices(source.config)[name][1]

    ops = SideBySideOps(source, quantised, texts[:1], texts[1:], on_inputs)
    logits = find_family("qwen3_moe").recipe(ops, source.config)
    both = [
        ReferenceModel(model).forward(texts[1].tolist()).logits for model in (quantised, source)
    ]
    np.testing.assert_allclose(logits, np.concatenate(both), atol=1e-4)
    assert np.abs(both[0] - both[1]).max() > 1e-3
    for part in ("gate", "up", "down"):
        assert (
            seen[f"layers.0.mlp.experts.{part}_proj.weight"] == 2 * 5
        )  # of the text that is not held out
