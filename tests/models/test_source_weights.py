"""Weights that are slices of a checkpoint's tensors, through a family that only the test knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.models import families
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.quant import FORMATS
from edgedec.models.reference import ReferenceModel
from edgedec.models.weights import PairedHeads, SourceWeight, Weight, check_weights

JOINED = '''
"""Llama whose q, k and v are one tensor, as are gate and up: the layout of Phi-3."""

from edgedec.models.blocks import decoder, decoder_shapes
from edgedec.models.families import find_family
from edgedec.models.families._hf import hf_decoder, hf_name
from edgedec.models.weights import SourceWeight, Weight

recipe = decoder
PARTS = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj",
         "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}


def read_hf(fields):
    return hf_decoder(fields, "joined", has_qkv_bias=True)


def read_gguf(facts):
    raise NotImplementedError


def weights(config):
    q, kv = config.n_heads * config.head_size, config.n_kv_heads * config.head_size
    first = {"k_proj": q, "v_proj": q + kv, "up_proj": config.intermediate_size}
    found = {}
    for name, shape in decoder_shapes(config).items():
        part = name.split(".")[-2]
        stored = hf_name(name.replace(part, PARTS.get(part, part)))
        place = SourceWeight(stored, first_row=first.get(part, 0))
        found[name] = Weight(shape, hf=place, gguf=place)
    return found
'''

SIZES = {
    "vocab_size": 48, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
}  # fmt: skip
TOKENIZER = {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}
JOINS = (
    ("self_attn.qkv_proj.{}", [f"self_attn.{p}_proj.{{}}" for p in "qkv"], ("weight", "bias")),
    ("mlp.gate_up_proj.{}", ["mlp.gate_proj.{}", "mlp.up_proj.{}"], ("weight",)),
)


@pytest.fixture
def joined_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Any]:
    """A directory of the test's family, and its weights by our names."""
    safetensors = pytest.importorskip("safetensors.numpy")
    (tmp_path / "families").mkdir()
    (tmp_path / "families" / "joined.py").write_text(JOINED)
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path / "families")])
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "joined", **SIZES}))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    config = open_family_config(folder)
    rng = np.random.default_rng(5)
    ours = {
        name: rng.standard_normal(shape).astype(np.float32) / 4
        for name, shape in families.weight_shapes(config).items()
    }
    safetensors.save_file(stored(ours), folder / "model.safetensors")
    return folder, ours


def open_family_config(folder: Path) -> Any:
    from edgedec.models.fields import Fields

    values = json.loads((folder / "config.json").read_text())
    return families.find_family("joined").read_hf(Fields(values, "config.json", CheckpointError))


def stored(ours: dict[str, Any]) -> dict[str, Any]:
    """Returns the tensors of the checkpoint: some weights joined."""
    left = dict(ours)
    found = {}
    for layer in range(2):
        for name, parts, kinds in JOINS:
            for kind in kinds:
                own = [left.pop(f"layers.{layer}.{part.format(kind)}") for part in parts]
                found[f"model.layers.{layer}.{name.format(kind)}"] = np.concatenate(own)
    return found | {n if n == "lm_head.weight" else f"model.{n}": v for n, v in left.items()}


def test_joined_weights_are_read_apart(joined_folder: tuple[Path, Any], make_source: Any) -> None:
    folder, ours = joined_folder
    checkpoint = open_checkpoint(str(folder))
    for name, values in ours.items():
        if values.ndim == 1:
            np.testing.assert_array_equal(checkpoint.vector(name), values)
        else:
            rows = checkpoint.rows(name, 3, len(values) - 1)
            np.testing.assert_array_equal(rows.dequantize(), values[3:-1], err_msg=name)
    plain = make_source(
        vocab_size=48, hidden_size=32, intermediate_size=40, n_layers=2, n_heads=4, n_kv_heads=2,
        head_size=8, max_positions=32, has_qkv_bias=True, rms_norm_eps=1e-6,
    )  # fmt: skip
    plain.weights = ours
    tokens = [1, 7, 3, 40]
    np.testing.assert_array_equal(
        ReferenceModel(checkpoint).forward(tokens).logits,
        ReferenceModel(plain).forward(tokens).logits,
    )


def test_a_tensor_must_consist_of_its_parts(joined_folder: tuple[Path, Any]) -> None:
    from safetensors.numpy import load_file, save_file

    path = joined_folder[0] / "model.safetensors"
    whole = load_file(path)
    name = "model.layers.1.self_attn.qkv_proj.weight"
    for wrong in (whole[name][:-1], np.concatenate([whole[name], whole[name][:1]])):
        save_file({**whole, name: wrong}, path)
        with pytest.raises(CheckpointError, match=rf"{name} has shape .* expected \[64, 32\]"):
            open_checkpoint(str(joined_folder[0]))
    save_file({n: v for n, v in whole.items() if n != name}, path)
    with pytest.raises(CheckpointError, match=f"missing tensor {name}"):
        open_checkpoint(str(joined_folder[0]))


def test_matrices_of_stacked_experts() -> None:
    rng = np.random.default_rng(0)
    stored = rng.integers(0, 99, (4, 6, 5))
    gate = SourceWeight("experts.gate_up", n_experts=4)
    up = SourceWeight("experts.gate_up", n_experts=4, first_row=3)
    down = SourceWeight("experts.{expert}.down", n_experts=4)
    np.testing.assert_array_equal(gate.take(stored, 12), stored[:, :3].reshape(12, 5))
    for start, stop in ((0, 12), (1, 3), (2, 10), (3, 6), (5, 5)):
        expected = stored[:, 3:].reshape(12, 5)[start:stop]
        np.testing.assert_array_equal(up.take(stored, 12, start, stop), expected)
    np.testing.assert_array_equal(down.take(list(stored), 24, 5, 14), stored.reshape(24, 5)[5:14])
    assert down.names == tuple(f"experts.{i}.down" for i in range(4))


def test_a_slice_with_a_transform() -> None:
    stored = np.arange(16).reshape(16, 1)
    q = SourceWeight("qk", order=PairedHeads(2))
    k = SourceWeight("qk", first_row=8, order=PairedHeads(1))
    assert q.take(stored, 8)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert k.take(stored, 8, 2, 5)[:, 0].tolist() == [12, 14, 9]


def test_stacked_experts_are_checked_as_one_tensor() -> None:
    weights = {
        part: ((12, 5), SourceWeight("experts", n_experts=4, first_row=row))
        for part, row in (("gate", 0), ("up", 3))
    }
    check_weights("moe", weights, {"experts": (4, 6, 5)})
    for shape in ((3, 6, 5), (4, 7, 5), (4, 6, 4), (24, 5)):
        with pytest.raises(CheckpointError, match=r"tensor experts .* expected \[4, 6, 5\]"):
            check_weights("moe", weights, {"experts": shape})
    with pytest.raises(UnsupportedModelError, match="does not read tensor router"):
        check_weights("moe", weights, {"experts": (4, 6, 5), "router": (4, 5)})


def test_quantised_rows_of_a_slice_keep_their_codes() -> None:
    place = SourceWeight("w", first_row=2)
    weight = Weight((3, 8), hf=place, gguf=place)
    codes = np.arange(48, dtype=np.uint8).reshape(6, 8)
    assert FORMATS["q8_0"].bits == 8
    taken = weight.gguf.take(codes, weight.shape[0])
    np.testing.assert_array_equal(taken, codes[2:5])
    assert taken.base is not None  # a view: nothing is copied before it is packed
