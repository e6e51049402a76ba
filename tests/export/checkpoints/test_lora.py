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
from edgedec.models.errors import CheckpointError, EdgedecError, UnsupportedModelError
from edgedec.models.families import weight_shapes
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


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("is_raw", [False, True], ids=["saved", "state_dict"])
@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": ["q_proj", "down_proj"], "use_dora": True},
        {"target_modules": ["q_proj"], "modules_to_save": ["norm"]},
        {"target_modules": ["q_proj", "embed_tokens"], "ensure_weight_tying": True},
        {"target_modules": ["q_proj", "lm_head"], "ensure_weight_tying": True},
        {
            "target_modules": ["q_proj"],
            "modules_to_save": ["embed_tokens"],
            "ensure_weight_tying": True,
        },
    ],
    ids=["dora", "saved norms", "tied embedding", "tied head", "saved tied embedding"],
)
def test_adapters_of_peft_for_a_tied_model(
    tmp_path: Path, config: dict[str, Any], is_raw: bool
) -> None:
    peft = pytest.importorskip("peft", reason="needs the dev extra")
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(shape)
    model.save_pretrained(tmp_path / "base")
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=RANK, lora_alpha=ALPHA, **config))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name or "modules_to_save" in name:
            parameter.data.normal_().abs_()
    adapted.save_pretrained(tmp_path / "a")
    if is_raw:
        stored = adapted.state_dict().items()
        raw = {k: v.numpy() for k, v in stored if "lora_" in k or "modules_to_save" in k}
        assert any(".default" in name for name in raw)
        safetensors.save_file(raw, tmp_path / "a" / WEIGHTS)
    merged = Merged(open_checkpoint(str(tmp_path / "base")), ((tmp_path / "a", 1.0),))
    assert merged.unapplied == ()
    theirs = adapted.base_model.model  # not merged: PEFT adds what is tied twice as it merges
    layer, ids = theirs.model.layers[0], torch.arange(300)
    with torch.no_grad():
        expected = {
            "embed_tokens.weight": theirs.model.embed_tokens(ids),
            "layers.0.self_attn.q_proj.weight": layer.self_attn.q_proj(torch.eye(64)).T,
            "layers.0.mlp.down_proj.weight": layer.mlp.down_proj(torch.eye(128)).T,
        }
        head = theirs.lm_head(torch.eye(64)).T
        norm = theirs.model.norm(torch.ones(1, 64))[0]
    np.testing.assert_allclose(head, expected["embed_tokens.weight"], rtol=1e-4, atol=1e-4)
    for name, weight in expected.items():
        stored = float_rows(merged, name, 0, len(weight))
        np.testing.assert_allclose(stored, weight, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(merged.vector("norm.weight"), norm, rtol=1e-4)


def test_a_name_of_the_adapter_in_tensors(make_gguf: Any, tmp_path: Path) -> None:
    base = open_checkpoint(str(make_gguf("llama")))
    write_adapter(tmp_path / "a")
    saved = safetensors.load_file(tmp_path / "a" / WEIGHTS)

    def merged(*names: str) -> Merged:
        raw = {
            k.replace(".weight", f".{name}.weight"): v
            for (k, v), name in zip(saved.items(), names * len(saved), strict=False)
        }
        safetensors.save_file(raw, tmp_path / "a" / WEIGHTS)
        return Merged(base, ((tmp_path / "a", 1.0),))

    name = "layers.1.mlp.down_proj.weight"
    expected = float_rows(Merged(base, ((tmp_path / "a", 1.0),)), name, 0, 256)
    np.testing.assert_array_equal(float_rows(merged("default"), name, 0, 256), expected)
    with pytest.raises(UnsupportedModelError, match=r"several adapters \('first', 'second'\)"):
        merged("first", "second")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite(make_gguf: Any, tmp_path: Path, value: float) -> None:
    name = "base_model.model.model.layers.0.input_layernorm.weight"
    write_adapter(tmp_path / "a", extra={name: np.full(256, value, np.float32)})
    with pytest.raises(CheckpointError, match=rf"{name} holds NaN or infinity, expected finite"):
        Merged(open_checkpoint(str(make_gguf("llama"))), ((tmp_path / "a", 1.0),))


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
    assert "layers.7.self_attn.q_proj has [4, 256] and no matrix, " in refusal()
    assert "expected a pair of rank 4: correct r or rank_pattern" in refusal()
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
    assert "adapts lm_head.weight of shape [2, 2], that of tiny-llama is [300" in refusal()
    write_adapter(folder, extra={"base_model.model.lm_head.weight": np.ones((9, 256), np.float32)})
    assert "the vocabulary was changed" in refusal(UnsupportedModelError)
    write_adapter(folder, extra={"transformer.h.0.weight": np.ones((2, 2), np.float32)})
    assert "expected names that begin with base_model.model." in refusal(UnsupportedModelError)
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"peft_type": "IA3"}, "'IA3'"),
        ({"init_lora_weights": "pissa"}, "merge_and_unload"),
        ({"init_lora_weights": "pissa_niter_16"}, "'pissa_niter_16'"),
        ({"init_lora_weights": "olora"}, "the training changed the base weights"),
        ({"init_lora_weights": "corda"}, "'corda'"),
        ({"init_lora_weights": "loftq"}, "'loftq'"),
        ({"kasa_config": {"x": 1}}, "kasa_config"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"use_qalora": True}, "use_qalora"),
    )
    write_adapter(folder, target_parameters=7)
    assert "target_parameters is 7, expected names of parameters" in refusal()
    for config, word in refused:
        write_adapter(folder, **config)
        assert word in refusal(UnsupportedModelError)
    stem = stem.replace("layers.0", "layers.1")
    write_adapter(folder, extra={f"{stem}.lora_A.weight": np.ones((RANK, 256), np.int32)})
    assert "lora_A.weight has type I32, expected floats" in refusal(UnsupportedModelError)
    write_adapter(folder)
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    assert "pickled adapters are not read" in refusal()


def test_unknown_settings_are_named(make_gguf: Any, tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", use_novelty=0.5, lora_dropout=0.1, target_modules=["q_proj"])
    base = open_checkpoint(str(make_gguf("llama")))
    merged = Merged(base, ((tmp_path / "a", 1.0),))
    novelty, *others = merged.unapplied
    assert novelty == "a/adapter_config.json: use_novelty is 0.5, which is not applied"
    assert len(others) == 1  # of the other modules that the adapter has


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"rank_pattern": {"wq": 9}}, "rank_pattern names 'wq', which no module of the model has"),
        ({"alpha_pattern": {r"layers\.9\..*": 9}}, r"alpha_pattern names 'layers\\.9\\..*', which"),
        ({"target_modules": ["q_proj", "v_proj", "down_proj", "wq"]}, "target_modules names 'wq'"),
        ({"target_modules": r".*\.wq"}, r"target_modules names '.*\\.wq', which no module"),
        ({"modules_to_save": ["score"]}, "modules_to_save names 'score', which no module"),
        ({"exclude_modules": ["vision"]}, "exclude_modules names 'vision', which no module"),
        ({"exclude_modules": "visual.*"}, "exclude_modules names 'visual.*', which no module"),
        ({"layers_pattern": "h"}, "layers_pattern names 'h', which no module"),
        ({"layers_to_transform": [1, 40]}, "layers_to_transform names 40, which no module"),
        (
            {"target_modules": ["q_proj", "v_proj"]},
            "'model.layers.1.mlp.down_proj' is not among its target_modules, so that PEFT leaves",
        ),
        (
            {"target_modules": "all-linear", "exclude_modules": ["q_proj", "mlp.down_proj"]},
            "'model.layers.1.mlp.down_proj' (and 1 more) is not among its target_modules",
        ),
        (
            {"target_modules": ["q_proj", "v_proj", "down_proj"], "layers_to_transform": 0},
            "(and 2 more) is not among its target_modules",
        ),
    ],
    ids=str,
)
def test_names_of_nothing_are_reported(
    make_gguf: Any, tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    write_adapter(tmp_path / "a", **config)
    merged = Merged(open_checkpoint(str(make_gguf("llama"))), ((tmp_path / "a", 1.0),))
    assert any(reason in line for line in merged.unapplied), merged.unapplied


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": "all-linear"},
        {"target_modules": None},
        {"target_modules": r"model\.layers\.\d+\.(self_attn|mlp)\..*_proj"},
        {"target_modules": [f"model.layers.1.{module}" for module in MODULES]},
        {"target_modules": ["q_proj", "v_proj", "down_proj"], "layers_to_transform": [1],
         "layers_pattern": ["layers"]},
        {"modules_to_save": ["lm_head", "embed_tokens"], "exclude_modules": ["o_proj"]},
        {"rank_pattern": {"k_proj": 2, "q_proj": RANK}, "alpha_pattern": {r".*\.0\..*": 2}},
    ],
    ids=str,
)  # fmt: skip
def test_names_of_modules_are_not_reported(
    make_gguf: Any, tmp_path: Path, config: dict[str, Any]
) -> None:
    write_adapter(tmp_path / "a", **config)
    merged = Merged(open_checkpoint(str(make_gguf("llama"))), ((tmp_path / "a", 1.0),))
    assert merged.unapplied == ()


def write_mlx_adapter(folder: Path, magnitude: Any = None) -> dict[str, Any]:
    """Writes an adapter as mlx-lm does; returns its pair."""
    folder.mkdir()
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((512, RANK), (RANK, 256)))
    stem = "model.layers.1.mlp.down_proj"
    tensors = {f"{stem}.lora_a": a, f"{stem}.lora_b": b}
    if magnitude is not None:
        tensors[f"{stem}.m"] = magnitude
    safetensors.save_file(tensors, folder / "adapters.safetensors")
    kind = "lora" if magnitude is None else "dora"
    stated = {
        "fine_tune_type": kind,
        "num_layers": 1,
        "lora_parameters": {"rank": RANK, "scale": 2.5},
    }
    (folder / CONFIG).write_text(json.dumps(stated))
    return {"a": a, "b": b}


@pytest.mark.parametrize("has_magnitude", [False, True])
def test_adapters_of_mlx(make_gguf: Any, tmp_path: Path, has_magnitude: bool) -> None:
    magnitude = np.linspace(1, 2, 256, dtype=np.float32) if has_magnitude else None
    pair = write_mlx_adapter(tmp_path / "a", magnitude)
    base = open_checkpoint(str(make_gguf("llama")))
    name = "layers.1.mlp.down_proj.weight"
    # mlx-lm's LoRALinear.fuse: weight + (scale * lora_b.T) @ lora_a.T
    expected = float_rows(base, name, 0, 256).astype(np.float64) + (2.5 * pair["b"].T) @ pair["a"].T
    if magnitude is not None:  # DoRALinear.fuse
        expected *= (magnitude / np.linalg.norm(expected, axis=1))[:, np.newaxis]
    merged = float_rows(Merged(base, ((tmp_path / "a", 1.0),)), name, 0, 256)
    np.testing.assert_allclose(merged, expected, rtol=1e-4, atol=1e-4)


def write_mlx_file(folder: Path, tensors: dict[str, Any], **stated: Any) -> Path:
    """Writes the folder of an adapter as mlx-lm does."""
    folder.mkdir()
    safetensors.save_file(tensors, folder / "adapters.safetensors")
    (folder / CONFIG).write_text(json.dumps(stated))
    return folder


PARAMETERS = {"rank": RANK, "scale": 20.0, "dropout": 0.0}


@pytest.mark.parametrize("is_tied", [False, True])
def test_adapted_embeddings_of_mlx(make_gguf: Any, tmp_path: Path, is_tied: bool) -> None:
    """mlx-lm's LoRAEmbedding: weight + scale * lora_a @ lora_b, for the head of a tied one, too."""
    base = open_checkpoint(
        str(make_gguf("llama", weights={"output.weight": None} if is_tied else None))
    )
    name = "embed_tokens.weight"
    n_rows, n_columns = weight_shapes(base.config)[name]
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(s, np.float32) for s in ((n_rows, RANK), (RANK, n_columns)))
    pair = {"model.embed_tokens.lora_a": a, "model.embed_tokens.lora_b": b}
    folder = write_mlx_file(tmp_path / "a", pair, lora_parameters=PARAMETERS)
    merged = Merged(base, ((folder, 1.0),))
    expected = float_rows(base, name, 0, n_rows) + 20 * a @ b
    np.testing.assert_allclose(float_rows(merged, name, 0, n_rows), expected, rtol=1e-4, atol=1e-4)


def test_whole_weights_of_mlx(make_gguf: Any, tmp_path: Path) -> None:
    base = open_checkpoint(str(make_gguf("llama")))
    name = "layers.1.mlp.down_proj.weight"
    whole = np.random.default_rng(6).standard_normal((256, 512), np.float32)
    norm = np.linspace(1, 2, 256, dtype=np.float32)
    tensors = {f"model.{name}": whole, "model.norm.weight": norm}
    folder = write_mlx_file(tmp_path / "a", tensors, fine_tune_type="full", num_layers=1)
    merged = Merged(base, ((folder, 1.0),))
    np.testing.assert_array_equal(float_rows(merged, name, 0, 256), whole)
    np.testing.assert_array_equal(merged.vector("norm.weight"), norm)


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("tensors", "stated", "words"),
    [
        ({"model.layers.0.mlp.switch_mlp.up_proj.lora_a": (4, RANK, 8),
          "model.layers.0.mlp.switch_mlp.up_proj.lora_b": (4, 8, RANK)},
         {"lora_parameters": PARAMETERS}, "experts are stacked: fuse it with mlx_lm.fuse"),
        ({"model.layers.0.mlp.switch_mlp.up_proj.weight": (4, 8, 8)},
         {"fine_tune_type": "full"}, "experts are stacked: fuse it with mlx_lm.fuse"),
        ({"model.layers.0.mlp.up_proj.lora_a": (256, 2),
          "model.layers.0.mlp.up_proj.lora_b": (2, 512)},
         {"lora_parameters": {**PARAMETERS, "rank": 9}}, "no pair of matrices of rank 9, which"),
    ],
)  # fmt: skip
def test_what_mlx_adapters_cannot_do(
    make_gguf: Any, tmp_path: Path, tensors: Any, stated: Any, words: str
) -> None:
    made = {name: np.zeros(shape, np.float32) for name, shape in tensors.items()}
    folder = write_mlx_file(tmp_path / "a", made, **stated)
    with pytest.raises(EdgedecError, match=words):
        Merged(open_checkpoint(str(make_gguf("llama"))), ((folder, 1.0),))


@pytest.mark.robustness
def test_early_adapters_of_mlx_are_named(make_gguf: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "adapters.npz", a=np.zeros(1))
    with pytest.raises(CheckpointError, match="early versions of mlx-lm wrote"):
        Merged(open_checkpoint(str(make_gguf("llama"))), ((tmp_path, 1.0),))


@pytest.mark.robustness
def test_adapters_in_gguf_files(make_gguf: Any, tmp_path: Path) -> None:
    base = open_checkpoint(str(make_gguf("llama")))
    adapter = tmp_path / "adapter.gguf"
    adapter.write_bytes(b"GGUF")
    with pytest.raises(UnsupportedModelError, match="adapters in GGUF files are not read"):
        Merged(base, ((adapter, 1.0),))


@pytest.mark.robustness
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(("value", "is_beyond"), [(1e19, True), (1e18, False)])
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
