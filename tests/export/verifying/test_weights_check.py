"""Files of an interrupted download, and other weights that nothing can be computed with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.export.report import ExportReport
from edgedec.models.errors import CheckpointError
from tests.export.conftest import LAYERS, tiny_weights

gguf = pytest.importorskip("gguf", reason="needs the dev extra")

GgufMaker = Callable[..., Path]
MATRICES = 7 * LAYERS + 2


def exported(source: Path, folder: Path, **options: Any) -> ExportReport:
    return export(ExportConfig(str(source), folder / "b.edgedec", **options))


def refusal(source: Path, folder: Path, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        exported(source, folder, **options)
    assert list(folder.iterdir()) == []
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def with_zeros_from(path: Path, share: float) -> Path:
    """Returns a copy of a GGUF file whose last part is zeros."""
    data = bytearray(path.read_bytes())
    start = int(gguf.GGUFReader(path).data_offset)
    first = start + int((len(data) - start) * share)
    data[first:] = bytes(len(data) - first)
    copy = path.with_name("interrupted.gguf")
    copy.write_bytes(data)
    return copy


@pytest.mark.robustness
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K"])
def test_a_file_of_zeros(make_gguf: GgufMaker, tmp_path: Path, kind: str) -> None:
    source = with_zeros_from(make_gguf("llama", kind), 0.0)
    text = refusal(source, tmp_path)
    assert f"all {MATRICES} matrices hold zeros alone" in text
    assert "fetch it again" in text


@pytest.mark.robustness
@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
def test_a_file_whose_end_was_not_written(
    make_gguf: GgufMaker, tmp_path: Path, share: float
) -> None:
    source = with_zeros_from(make_gguf("llama", "Q8_0"), share)
    try:
        warnings = exported(source, tmp_path).warnings
    except CheckpointError as error:
        warnings = (str(error),)
    assert any("interrupted" in warning for warning in warnings)


@pytest.mark.robustness
def test_a_matrix_of_zeros(make_gguf: GgufMaker, tmp_path: Path) -> None:
    weights = tiny_weights()
    zeros = {"blk.1.ffn_down.weight": np.zeros_like(weights["blk.1.ffn_down.weight"])}
    done = exported(make_gguf("llama", weights=zeros), tmp_path)
    (warning,) = done.warnings
    assert f"1 of {MATRICES} matrices (layers.1.mlp.down_proj.weight) of tiny-llama" in warning
    assert json.loads(json.dumps(done.to_dict()))["warnings"] == [warning]


@pytest.mark.robustness
def test_half_a_matrix_of_zeros(make_gguf: GgufMaker, tmp_path: Path) -> None:
    weights = tiny_weights()
    weights["blk.1.ffn_down.weight"][100:] = 0
    (warning,) = exported(make_gguf("llama", weights=weights), tmp_path).warnings
    assert "many rows of layers.1.mlp.down_proj.weight (61%)" in warning


@pytest.mark.robustness
def test_a_layer_of_zeros(make_gguf: GgufMaker, tmp_path: Path) -> None:
    weights = tiny_weights()
    zeros = {n: np.zeros_like(w) for n, w in weights.items() if n.startswith("blk.1.")}
    assert "layers.1 holds zeros alone" in refusal(make_gguf("llama", weights=zeros), tmp_path)


@pytest.mark.robustness
def test_norms_of_zeros(make_gguf: GgufMaker, tmp_path: Path) -> None:
    weights = tiny_weights()
    zeros = {"blk.1.ffn_norm.weight": np.zeros_like(weights["blk.1.ffn_norm.weight"])}
    (warning,) = exported(make_gguf("llama", weights=zeros), tmp_path).warnings
    assert "norms and biases (layers.1.post_attention_layernorm.weight)" in warning


@pytest.mark.robustness
def test_logits_without_spread(make_gguf: GgufMaker, tmp_path: Path) -> None:
    zeros = {"output_norm.weight": np.zeros_like(tiny_weights()["output_norm.weight"])}
    text = refusal(make_gguf("llama", weights=zeros), tmp_path)
    assert "all logits of tiny-llama are equal" in text


@pytest.mark.robustness
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.attn_k.weight"])
def test_values_that_are_no_numbers(
    make_gguf: GgufMaker, tmp_path: Path, value: float, kind: str, name: str
) -> None:
    weights = tiny_weights()
    weights[name][-1, 7] = value
    text = refusal(make_gguf("llama", kind, weights=weights), tmp_path)
    assert f"holds infinite or undefined values in row {len(weights[name]) - 1}" in text


@pytest.mark.robustness
def test_scales_that_are_no_numbers(make_gguf: GgufMaker, tmp_path: Path) -> None:
    path = make_gguf("llama", "Q8_0")
    reader = gguf.GGUFReader(path, "r+")
    tensor = next(t for t in reader.tensors if t.name == "blk.0.ffn_up.weight")
    tensor.data[3, :2] = np.array([np.inf], np.float16).view(np.uint8)
    reader.data.flush()  # type: ignore[union-attr]
    assert "layers.0.mlp.up_proj.weight holds infinite or undefined values in row 3" in refusal(
        path, tmp_path
    )


@pytest.mark.robustness
def test_norms_that_are_no_numbers(make_gguf: GgufMaker, tmp_path: Path) -> None:
    weights = tiny_weights()
    weights["blk.1.attn_norm.weight"][9] = np.nan
    text = refusal(make_gguf("llama", weights=weights), tmp_path)
    assert "layers.1.input_layernorm.weight holds infinite or undefined values" in text


@pytest.mark.robustness
def test_what_a_scheme_cannot_hold(make_gguf: GgufMaker, tmp_path: Path) -> None:
    weights = tiny_weights()
    weights["blk.1.ffn_down.weight"][:, ::32] = 1e6  # beyond the float16 of a scale and 8 codes
    done = exported(make_gguf("llama", weights=weights), tmp_path, quantization="int4")
    worst = done.tensors["target"][0]
    assert worst.relative_rms > 0.3
    assert bool(done.warnings) is (worst.relative_rms > 0.5)


def test_what_was_looked_at(make_gguf: GgufMaker, tmp_path: Path) -> None:
    done = exported(make_gguf("llama"), tmp_path)
    assert done.warnings == ()
    vectors = 2 * LAYERS + 1
    looked_at = {"n_matrices": MATRICES, "n_vectors": vectors}
    assert done.manifest.verification["weights"] == looked_at


@pytest.mark.robustness
@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_K"])
def test_the_last_bytes_were_not_written(make_gguf: GgufMaker, tmp_path: Path, kind: str) -> None:
    source = make_gguf("llama", kind)
    reader = gguf.GGUFReader(source)
    last = max(reader.tensors, key=lambda tensor: tensor.data_offset)
    data = bytearray(source.read_bytes())
    end = int(last.data_offset + last.n_bytes)
    n_bytes = int(last.n_bytes) * 3 // 2 // int(last.shape[-1])  # a row and a half
    data[end - n_bytes : end] = bytes(n_bytes)
    source.write_bytes(data)
    (warning,) = exported(source, tmp_path).warnings
    assert f"tensor {last.name} is zeros in parts of its rows" in warning
    assert f"to byte {end} of the file" in warning
    assert "interrupted" in warning


@pytest.mark.robustness
def test_a_file_that_is_too_short(make_gguf: GgufMaker, tmp_path: Path) -> None:
    source = make_gguf("llama")
    source.write_bytes(source.read_bytes()[:-100])
    assert "fetch it again" in refusal(source, tmp_path)
