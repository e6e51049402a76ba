"""Heads that are trained as 4 bits will hold them: nothing is lost when they are written."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from edgedec.export.quantising.quantise import quantize_rows
from edgedec.models.draft_heads import HYDRA
from edgedec.models.manifest import read_manifest
from edgedec.models.quant import FORMATS
from edgedec.training.heads.head_check import share_found

torch = pytest.importorskip("torch", reason="needs the extra train")

from edgedec.training.features.feature_file import TextFeatures, held_out_of  # noqa: E402
from edgedec.training.heads.torch_head import four_bit  # noqa: E402

from .head_parts import plan_of, put, trained  # noqa: E402


@pytest.mark.parametrize("k", [32, 64, 70])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_trained_is_what_is_stored(seed: int, k: int) -> None:
    """Signs, zeros, partial groups, and matrices that were rounded before."""
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((24, k), np.float32) * np.float32(10.0 ** (seed - 2))
    matrix[0], matrix[1, :32] = 0.0, np.abs(matrix[1, :32])
    rounded = four_bit(torch.from_numpy(matrix)).numpy()
    stored = quantize_rows(rounded, FORMATS["q4_0"]).dequantize()
    np.testing.assert_array_equal(stored, rounded)
    again = quantize_rows(stored, FORMATS["q4_0"]).dequantize()
    np.testing.assert_array_equal(again, stored)
    step = np.abs(matrix).max() / 8
    assert 0 < np.abs(rounded - matrix).max() <= 1.01 * step


def test_gradients_pass_as_if_nothing_were_rounded() -> None:
    matrix = torch.randn(4, 64, requires_grad=True)
    slopes = torch.randn(4, 64)
    (four_bit(matrix) * slopes).sum().backward()
    torch.testing.assert_close(matrix.grad, slopes)


@pytest.mark.slow
def test_a_bundle_finds_what_the_training_measured(
    bundle: Path, texts: list[TextFeatures], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tiny model finds tokens about equally likely, nearer than bfloat16 tells apart.
    fast = "edgedec.training.loop.has_fast_bfloat16"
    monkeypatch.setattr(fast, lambda device: False)
    plan = dataclasses.replace(
        plan_of(HYDRA, n_epochs=40, learning_rate=3e-3, batch=24), scheme="int4"
    )
    head = trained(bundle, tmp_path / "features", texts, plan)
    put(bundle, head, tmp_path / "tiny.edgedec", "int4")
    manifest = read_manifest(tmp_path / "tiny.edgedec")
    found = share_found(tmp_path / "tiny.edgedec", manifest, held_out_of(texts), 1)
    assert manifest.head is not None
    assert found == pytest.approx(manifest.head.held_out[0], abs=0.02)
    for name in ("layers.0.mlp.gate_proj.weight", "lm_head.weight"):
        own = head.weights[name]
        stored = quantize_rows(own, FORMATS["q4_0"]).dequantize()
        np.testing.assert_array_equal(stored, own, err_msg=name)
