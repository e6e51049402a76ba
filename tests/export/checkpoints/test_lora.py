"""LoRA adapters: merged as PEFT merges them; those of other models refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.checkpoints.lora import CONFIG, WEIGHTS, Merged
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.export.quantising.quantise import Quantized, measure_errors
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.weights import float_rows

safetensors = pytest.importorskip("safetensors.numpy", reason="needs the export extra")

RANK, ALPHA = 4, 12
MODULES = {
    "self_attn.q_proj": (256, 256),
    "self_attn.v_proj": (128, 256),
    "mlp.down_proj": (256, 512),
}


def write_adapter(folder: Path, seed: int = 0, extra: Any = None, **config: Any) -> dict[str, Any]:
    """Writes an adapter of the tiny llama; returns ``B @ A`` of each matrix by our names."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    tensors, products = {}, {}
    for module, (n, k) in MODULES.items():
        name = f"layers.1.{module}"
        a = rng.standard_normal((RANK, k)).astype(np.float32)
        b = rng.standard_normal((n, RANK)).astype(np.float32)
        tensors[f"base_model.model.model.{name}.lora_A.weight"] = a
        tensors[f"base_model.model.model.{name}.lora_B.weight"] = b
        products[f"{name}.weight"] = b.astype(np.float64) @ a
    safetensors.save_file({**tensors, **(extra or {})}, folder / WEIGHTS)
    stated = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "bias": "none", **config}
    (folder / CONFIG).write_text(json.dumps(stated))
    return products


@pytest.mark.parametrize(
    ("config", "factor"), [({}, ALPHA / RANK), ({"use_rslora": True}, ALPHA / RANK**0.5)]
)
def test_what_is_added(make_gguf: Any, tmp_path: Path, config: Any, factor: float) -> None:
    base = open_checkpoint(str(make_gguf("llama")))
    first = write_adapter(tmp_path / "a", **config)
    second = write_adapter(tmp_path / "b", seed=1, **config)
    merged = Merged(base, ((tmp_path / "a", 1.0), (tmp_path / "b", -0.5)))
    for name, product in first.items():
        n = len(product)
        difference = factor * (product - 0.5 * second[name])
        expected = float_rows(base, name, 0, n).astype(np.float64) + difference
        np.testing.assert_allclose(float_rows(merged, name, 0, n), expected, rtol=1e-5, atol=1e-4)
        part = float_rows(merged, name, 5, 40)
        np.testing.assert_allclose(part, expected[5:40], rtol=1e-5, atol=1e-4)
        change = np.linalg.norm(difference) / np.linalg.norm(float_rows(base, name, 0, n))
        assert merged.changes()[name] == pytest.approx(change, rel=1e-4)
    untouched = "layers.0.self_attn.q_proj.weight"
    np.testing.assert_array_equal(
        float_rows(merged, untouched, 0, 9), float_rows(base, untouched, 0, 9)
    )


@pytest.mark.slow
@pytest.mark.parity
def test_the_same_as_peft(make_gguf: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs the dev extra")
    import torch

    write_adapter(tmp_path / "a", target_modules=["q_proj", "v_proj", "down_proj"])
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=300, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    base = open_checkpoint(str(make_gguf("llama")))
    model = LlamaForCausalLM(config)
    name = "layers.1.mlp.down_proj.weight"
    model.model.layers[1].mlp.down_proj.weight.data = torch.tensor(float_rows(base, name, 0, 256))
    theirs = peft.PeftModel.from_pretrained(model, str(tmp_path / "a")).merge_and_unload()
    ours = float_rows(Merged(base, ((tmp_path / "a", 1.0),)), name, 0, 256)
    expected = theirs.model.layers[1].mlp.down_proj.weight.detach().numpy()
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("type_name", "held"), [("F16", "f16"), ("BF16", "bf16"), ("Q4_0", "q8_0")]
)
def test_formats_of_merged_matrices(
    make_gguf: Any, tmp_path: Path, type_name: str, held: str
) -> None:
    write_adapter(tmp_path / "a")
    source = make_gguf("llama", type_name)
    report = export(
        ExportConfig(str(source), tmp_path / "tiny.edgedec", lora=((tmp_path / "a", 0.01),))
    )
    formats = report.manifest.target.tensor_formats
    assert formats["layers.1.mlp.down_proj.weight"] == held
    assert formats["layers.0.mlp.down_proj.weight"] == type_name.lower()
    found = report.manifest.verification["lora"]
    assert found["n_matrices"] == len(MODULES)
    assert 0 < found["mean_change"] <= found["largest_change"]
    assert len(report.tensors["target"]) == (len(MODULES) if held == "q8_0" else 0)


@pytest.mark.robustness
def test_adapters_that_do_not_fit(make_gguf: Any, tmp_path: Path) -> None:
    base = open_checkpoint(str(make_gguf("llama")))
    folder = tmp_path / "a"

    def refusal(kind: type[Exception] = CheckpointError) -> str:
        with pytest.raises(kind) as caught:
            Merged(base, ((folder, 1.0),))
        assert len(str(caught.value).splitlines()) == 1
        return str(caught.value)

    assert "has no adapter_config.json" in refusal()
    stem = "base_model.model.model.layers.7.self_attn.q_proj"
    pair = {f"{stem}.lora_A.weight": np.ones((RANK, 256), np.float32)}
    write_adapter(folder, extra=pair)
    assert "layers.7.self_attn.q_proj has no pair of matrices of rank 4" in refusal()
    write_adapter(folder, extra={**pair, f"{stem}.lora_B.weight": np.ones((256, RANK), np.float32)})
    assert "adapts model.layers.7.self_attn.q_proj.weight, which tiny-llama does not" in refusal()
    stem = stem.replace("layers.7", "layers.0")
    wide = {
        f"{stem}.lora_A.weight": np.ones((RANK, 64), np.float32),
        f"{stem}.lora_B.weight": np.ones((256, RANK), np.float32),
    }
    write_adapter(folder, extra=wide)
    assert "of shape [256, 64], that of tiny-llama is [256, 256]; it is an adapter of" in refusal()
    write_adapter(folder, r=8)
    assert "of rank 8" in refusal()
    write_adapter(folder, extra={"base_model.model.lm_head.weight": np.ones((2, 2), np.float32)})
    assert "expected only pairs lora_A and lora_B" in refusal(UnsupportedModelError)
    for config, word in (({"use_dora": True}, "use_dora"), ({"peft_type": "IA3"}, "'IA3'")):
        write_adapter(folder, **config)
        assert word in refusal(UnsupportedModelError)
    stem = stem.replace("layers.0", "layers.1")
    write_adapter(folder, extra={f"{stem}.lora_A.weight": np.ones((RANK, 256), np.int32)})
    assert "lora_A.weight has type I32, expected floats" in refusal(UnsupportedModelError)
    write_adapter(folder)
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    assert "pickled adapters are not read" in refusal()


@pytest.mark.robustness
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(("value", "is_beyond"), [(np.nan, True), (1e19, True), (1e18, False)])
def test_what_is_added_may_be_beyond_floats(
    make_gguf: Any, tmp_path: Path, value: float, is_beyond: bool
) -> None:
    stem = "base_model.model.model.layers.1.self_attn.q_proj"
    shapes = {"lora_A": (RANK, 256), "lora_B": (256, RANK)}
    extra = {
        f"{stem}.{part}.weight": np.full(shape, value, np.float32) for part, shape in shapes.items()
    }
    write_adapter(tmp_path / "a", extra=extra)
    merged = Merged(open_checkpoint(str(make_gguf("llama", "Q4_0"))), ((tmp_path / "a", 1.0),))
    name = "layers.1.self_attn.q_proj.weight"
    if is_beyond:
        with pytest.raises(CheckpointError, match="is beyond f32: merge them with less weight"):
            merged.rows(name, 0, 9)
    else:
        assert 1e30 < merged.changes()[name] < 1e40
        errors = {error.name: error for error in measure_errors(merged, Quantized(merged, "keep"))}
        assert 0 < errors[name].relative_rms <= 1
