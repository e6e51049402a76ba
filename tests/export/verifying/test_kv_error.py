"""What an int8 KV cache is said to cost, and when it is too much."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import edgedec
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.checkpoints.published import SpecialTokens
from edgedec.export.config import DraftModelConfig, ExportConfig
from edgedec.export.pipeline import export
from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.graph import attributes
from edgedec.export.to_onnx.key_offsets import set_key_offsets
from edgedec.export.to_onnx.messages import ModelProto, save_model
from edgedec.export.to_onnx.passes.fuse_attention import set_kv_format
from edgedec.export.to_onnx.runners import FusedRunner
from edgedec.export.verifying import kv_error
from edgedec.export.verifying.kv_error import kv_error_tokens, measure_kv_error
from edgedec.export.verifying.verify import compare_logits
from edgedec.kernels.library import has_library
from edgedec.models.bundle_files import damaged_files
from edgedec.models.errors import BundleError, ConfigError, UnsupportedModelError
from edgedec.models.families import weight_shapes
from edgedec.models.manifest import BundleManifest, read_manifest
from edgedec.runtime.backends import open_model, release_model
from edgedec.targets.cpu import export_fused as fused
from edgedec.targets.cpu.run_fused import FusedModel

GgufMaker = Callable[..., Path]
TOKENS = [(37 * i + 5) % 83 for i in range(60)]

pytestmark = pytest.mark.skipif(not has_library(), reason="the kernel library is not built")


def fused_graph(source: Any, kv_format: str) -> ModelProto:
    shapes = weight_shapes(source.config)
    formats = {name: source.format(name) for name, shape in shapes.items() if len(shape) == 2}
    return fuse(emit_portable(source.config, ()), source.config, formats, kv_format=kv_format)


def written(source: Any, folder: Path, kv_format: str) -> Path:
    folder.mkdir()
    model = fused_graph(source, kv_format)
    write_weights(model, source, folder)
    save_model(model, folder / "model.onnx")
    return folder / "model.onnx"


def all_logits(graph: Path, source: Any) -> npt.NDArray[np.float32]:
    """Returns the logits of the tokens in one pass."""
    runner = FusedRunner(graph, source.config, len(TOKENS))
    return runner.compute_logits(TOKENS, range(-1, len(TOKENS) - 1)).copy()


def test_measures_are_those_of_the_two_graphs(make_source: Any, tmp_path: Path) -> None:
    source = make_source(has_qkv_bias=True)
    int8 = written(source, tmp_path / "int8", "int8")
    found = measure_kv_error(int8, source.config, TOKENS)
    assert sorted(path.name for path in int8.parent.iterdir()) == ["model.onnx", "weights.bin"]
    float16 = written(source, tmp_path / "float16", "float16")
    logits, expected = all_logits(int8, source), all_logits(float16, source)
    wanted = compare_logits(logits, expected)
    for name in ("n_tokens", "max_abs_error", "mean_abs_error", "top1_agreement", "kl_nats"):
        assert found[name] == pytest.approx(wanted[name], rel=1e-4)
    assert found["logit_std"] == pytest.approx(expected.std(axis=-1).mean(), rel=1e-4)
    by_token = [compare_logits(logits[i : i + 1], expected[i : i + 1]) for i in range(60)]
    assert found["max_kl_nats"] == pytest.approx(max(row["kl_nats"] for row in by_token), rel=1e-4)
    assert 1e-9 < found["kl_nats"] < found["max_kl_nats"] < 0.05


def test_float16_against_itself_is_no_error(make_source: Any, tmp_path: Path) -> None:
    graph = written(make_source(), tmp_path / "float16", "float16")
    found = measure_kv_error(graph, make_source().config, TOKENS)
    assert (found["max_abs_error"], found["kl_nats"], found["top1_agreement"]) == (0, 0, 1)


def test_the_graph_can_be_set_back(make_source: Any) -> None:
    source = make_source()
    model, float16 = fused_graph(source, "int8"), fused_graph(source, "float16")
    formats = [attributes(n)["kv_format"] for n in model.graph.node if n.op_type == "Attention"]
    assert formats == [1] * source.config.n_layers
    set_key_offsets(model, source.config, {1: np.ones((2, 8), np.float32)})
    set_kv_format(model, source.config, "float16")
    assert model.SerializeToString(deterministic=True) == float16.SerializeToString(
        deterministic=True
    )


class Tokens:
    """A checkpoint that has a tokenizer and nothing else."""

    def __init__(self, vocab_size: int, tokenizer: str, special: SpecialTokens) -> None:
        self.config = type("Config", (), {"vocab_size": vocab_size})
        self.special = special
        self._tokenizer = tokenizer

    def tokenizer_json(self) -> str:
        return self._tokenizer


@pytest.mark.slow
def test_text_of_a_few_hundred_tokens(smollm2_gguf: Path) -> None:
    checkpoint = open_checkpoint(str(smollm2_gguf))
    tokens = kv_error_tokens(checkpoint, 8192)
    assert 300 < len(tokens) < 800
    assert len(set(tokens)) > 200
    assert kv_error_tokens(checkpoint, 100) == tokens[:100]
    whole = Tokens(49152, checkpoint.tokenizer_json(), SpecialTokens((), (1,)))
    assert kv_error_tokens(whole, 8192) == [1, *tokens]  # type: ignore[arg-type]
    few = Tokens(3, checkpoint.tokenizer_json(), SpecialTokens(()))
    assert kv_error_tokens(few, 8192) == [0, 1, 2]  # type: ignore[arg-type]


def test_bundle_with_a_draft_model(make_gguf: GgufMaker, tmp_path: Path) -> None:
    bundle, draft = tmp_path / "pair.edgedec", DraftModelConfig(str(make_gguf("qwen2")))
    config = ExportConfig(
        str(make_gguf("llama")), bundle, context=64, draft=draft, kv_format="int8"
    )
    report = export(config)
    manifest = read_manifest(bundle)
    assert damaged_files(bundle, manifest.files) == []
    assert BundleManifest.from_dict(json.loads(json.dumps(manifest.to_dict()))) == manifest
    names = {path.name for path in bundle.rglob("*.onnx")}
    assert names == {"model.onnx"}
    for role, found in (
        ("target", manifest.verification),
        ("draft", manifest.verification["draft"]),
    ):
        assert manifest.models[role].contract.kv.format == "int8"
        assert report.to_dict()["models"][role]["kv_format"] == "int8"
        assert found["kv_cache"]["n_tokens"] == 64
        error = found["kv_cache"]
        assert 0 < error["mean_abs_error"] < 0.1 * error["logit_std"]
        assert found["tree_max_abs_error"] == 0
        model = open_model(bundle, manifest.models[role], 1)
        assert isinstance(model, FusedModel)
        assert model.contract.kv.format == "int8"
        release_model(model)
    texts = []
    for method in ("plain", "draft"):
        request = edgedec.GenerationConfig(max_new_tokens=20, ignore_eos=True, method=method)
        with edgedec.load(bundle) as engine:
            texts.append(engine.generate("hello world 12", request).token_ids)
            engine.save_session(tmp_path / "session")
        with edgedec.load(bundle) as engine:
            assert engine.load_session(tmp_path / "session") > 0
            texts.append(engine.generate("hello world 12", request).token_ids)
    assert texts == texts[:1] * 4


def test_default_is_float16(make_gguf: GgufMaker, tmp_path: Path) -> None:
    manifest = export(ExportConfig(str(make_gguf("llama")), tmp_path / "b")).manifest
    assert manifest.target.contract.kv.format == "float16"
    assert "kv_cache" not in manifest.verification


@pytest.mark.robustness
def test_graph_and_manifest_must_agree(make_gguf: GgufMaker, tmp_path: Path) -> None:
    bundle = tmp_path / "b.edgedec"
    export(ExportConfig(str(make_gguf("llama")), bundle, context=64, kv_format="int8"))
    fields = json.loads((bundle / "manifest.json").read_text())
    fields["models"]["target"]["contract"]["kv"]["format"] = "float16"
    (bundle / "manifest.json").write_text(json.dumps(fields))
    with pytest.raises(BundleError, match="KV cache of uint8, the manifest states float16"):
        edgedec.load(bundle)


def test_an_error_too_large_is_refused(
    make_gguf: GgufMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"mean_abs_error": 1.0, "logit_std": 3.0}
    monkeypatch.setattr(fused, "measure_kv_error", lambda *arguments: found)
    config = ExportConfig(str(make_gguf("llama")), tmp_path / "b", kv_format="int8")
    for value in (1.0, float("nan")):
        found["mean_abs_error"] = value
        with pytest.raises(
            UnsupportedModelError, match=r"with an int8 KV cache .* --kv-cache float"
        ):
            export(config)
        assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_format": "int3"}, "'int3', expected one of float16, int8, k5v4"),
        ({"kv_format": ""}, "expected one of float16, int8"),
        (
            {"kv_format": "int8", "device_target": "portable"},
            "leave out --kv-cache, or choose another --target",
        ),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ExportConfig("model.gguf", tmp_path / "b", **options)


def test_no_file_stays_behind_an_error(
    make_source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_source()
    graph = written(source, tmp_path / "int8", "int8")

    def fail(*arguments: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(kv_error, "FusedRunner", fail)
    with pytest.raises(RuntimeError):
        measure_kv_error(graph, source.config, TOKENS)
    assert sorted(path.name for path in graph.parent.iterdir()) == ["model.onnx", "weights.bin"]
