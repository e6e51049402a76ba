"""Whole exports of tiny models: every scheme, every device target, families without a recipe."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgedec
from edgedec.export.config import ExportConfig
from edgedec.export.phases import optimum_fallback, recipe_phases
from edgedec.export.pipeline import export
from edgedec.export.quantising.quantise import MIXED, SCHEMES
from edgedec.export.report import ExportReport
from edgedec.models.bundle_files import damaged_files
from edgedec.models.errors import ConfigError, UnsupportedModelError
from edgedec.models.manifest import read_manifest

GgufMaker = Callable[..., Path]
TEXT = "hello world 12"


def export_and_run(source: Path, folder: Path, **options: Any) -> tuple[ExportReport, list[int]]:
    """Returns the report of an export and six greedy tokens of the bundle."""
    bundle = folder / "tiny.edgedec"
    report = export(ExportConfig(source=str(source), destination=bundle, **options))
    assert damaged_files(bundle, read_manifest(bundle).files) == []
    request = edgedec.GenerationConfig(max_new_tokens=6, ignore_eos=True)
    with edgedec.load(bundle) as engine:
        return report, list(engine.generate(TEXT, request).token_ids)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme != MIXED])
def test_schemes(make_gguf: GgufMaker, tmp_path: Path, family: str, scheme: str) -> None:
    report, tokens = export_and_run(make_gguf(family), tmp_path, quantization=scheme)
    assert len(tokens) == 6
    assert report.manifest.quantization == scheme
    formats = report.manifest.models["target"].tensor_formats
    assert formats["layers.0.mlp.up_proj.weight"] == (SCHEMES[scheme] or "f32")
    errors = [tensor.relative_rms for tensor in report.tensors["target"]]
    assert errors == sorted(errors, reverse=True)
    assert len(errors) == (0 if scheme == "keep" else len(formats))
    assert all(0 < error < (0.02 if "8" in scheme else 0.2) for error in errors)
    document = json.loads(json.dumps(report.to_dict()))
    assert len(document["models"]["target"]["tensors"]) == len(errors)


@pytest.mark.parity
def test_device_targets_agree_on_float_weights(make_gguf: GgufMaker, tmp_path: Path) -> None:
    source = make_gguf("qwen2")
    (tmp_path / "a").mkdir()
    fused, fused_tokens = export_and_run(source, tmp_path / "a", hidden_layers=(0, 2))
    portable, portable_tokens = export_and_run(source, tmp_path, device_target="portable")
    assert fused_tokens == portable_tokens
    assert fused.manifest.target.contract.compiler == "fused"
    assert fused.manifest.target.contract.can.hidden == (0, 2)
    assert portable.manifest.target.contract.compiler == "portable"


def test_portable_graphs_hold_float32(make_gguf: GgufMaker, tmp_path: Path) -> None:
    source = make_gguf("llama", type_name="Q8_0")
    report, _ = export_and_run(source, tmp_path, device_target="portable")
    assert set(report.manifest.models["target"].tensor_formats.values()) == {"f32"}
    assert report.manifest.verification["max_abs_error"] < 1e-3


@pytest.fixture
def gpt2_folder(tmp_path: Path) -> Path:
    """A tiny random GPT-2, for which there is no recipe."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("optimum.exporters.onnx")
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path / "tiny-gpt2"
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=256, n_positions=64, n_embd=32, n_layer=2, n_head=4,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).eval().save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_a_family_without_recipe_goes_through_optimum(gpt2_folder: Path, tmp_path: Path) -> None:
    report, tokens = export_and_run(gpt2_folder, tmp_path, context=48)
    entry = report.manifest.models["target"]
    assert (entry.config.family, entry.context) == ("gpt2", 48)
    assert (entry.contract.compiler, entry.contract.backend) == ("optimum", "portable")
    assert not entry.contract.can.trees
    assert report.manifest.verification["max_abs_error"] < 1e-3
    assert len(tokens) == 6


def test_what_optimum_cannot_give(gpt2_folder: Path, tmp_path: Path) -> None:
    destination = tmp_path / "b"
    for options in ({"quantization": "int4"}, {"hidden_layers": (1,)}, {"context": 65}):
        config = ExportConfig(str(gpt2_folder), destination, **options)
        with pytest.raises(ConfigError):
            export(config)
        assert not destination.exists()


def test_without_optimum_the_family_is_named(
    gpt2_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optimum_fallback, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedModelError, match=r"gpt2.*llama.*qwen2.*pip install"):
        export(ExportConfig(str(gpt2_folder), tmp_path / "b"))


def test_a_family_without_recipe_in_a_gguf_file(make_gguf: GgufMaker, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="mamba"):
        export(ExportConfig(str(make_gguf("mamba")), tmp_path / "b"))


def test_a_graph_that_computes_something_else_is_refused(
    make_gguf: GgufMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify(*arguments: object) -> dict[str, float]:
        return {"mean_abs_error": float("nan"), "logit_std": 1.0}

    monkeypatch.setattr(recipe_phases, "verify_logits", verify)
    with pytest.raises(UnsupportedModelError, match="from the reference"):
        export(ExportConfig(str(make_gguf("llama")), tmp_path / "b"))
    assert list(tmp_path.iterdir()) == []
