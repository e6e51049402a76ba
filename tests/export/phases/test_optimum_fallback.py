"""Families without a recipe go through optimum-onnx."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from tokenizers import Tokenizer, models

from edgedec.export.config import ExportConfig
from edgedec.export.phases import optimum_fallback
from edgedec.export.phases.optimum_fallback import export_with_optimum
from edgedec.export.phases.optimum_model import RecipelessModel, find_recipeless
from edgedec.models.errors import CheckpointError, UnsupportedModelError

TOKENS = [5, 90, 33, 2, 61]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: Any) -> Any:
    """Returns a tiny random GPT-2 and its directory."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=97,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    folder = tmp_path_factory.mktemp("gpt2")
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(folder)
    return model, folder


def test_gpt2(gpt2: Any, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("optimum.exporters.onnx")
    torch = pytest.importorskip("torch")
    model, folder = gpt2
    written = export_with_optimum(folder, "gpt2", tmp_path)
    assert capsys.readouterr().out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx"]
    assert written.verification["max_abs_error"] < 1e-4
    config = written.config
    assert (config.n_layers, config.n_kv_heads, config.head_size) == (2, 4, 8)
    assert (config.vocab_size, config.hidden_size, config.max_positions) == (97, 32, 64)

    session = ort.InferenceSession(str(tmp_path / "model.onnx"))
    kv_cache = {
        f"past_key_values.{i}.{part}": np.zeros((1, 4, 0, 8), np.float32)
        for i in range(2)
        for part in ("key", "value")
    }
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    for i, token in enumerate(TOKENS):
        feeds = {
            "input_ids": np.array([[token]]),
            "attention_mask": np.ones((1, i + 1), np.int64),
            "position_ids": np.array([[i]]),
            **kv_cache,
        }
        names = [name.replace("past_key_values", "present") for name in kv_cache]
        logits, *present = session.run(["logits", *names], feeds)
        kv_cache = dict(zip(kv_cache, present, strict=True))
        np.testing.assert_allclose(logits[0, 0], expected[i], atol=1e-4)


def test_family_optimum_does_not_know(gpt2: Any, tmp_path: Path) -> None:
    pytest.importorskip("optimum.exporters.onnx")
    folder = tmp_path / "model"
    folder.mkdir()
    weights = gpt2[1] / "model.safetensors"
    (folder / "model.safetensors").write_bytes(weights.read_bytes())
    (folder / "config.json").write_text('{"model_type": "zamba9"}')
    with pytest.raises(UnsupportedModelError, match=r"family zamba9 .*llama, .*qwen2.*optimum"):
        export_with_optimum(folder, "zamba9", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.parametrize("error", [RuntimeError("a\nb"), AssertionError(), OSError(2, "c")])
def test_what_optimum_stumbles_over_is_one_line(
    gpt2: Any, tmp_path: Path, monkeypatch: Any, error: Exception
) -> None:
    optimum = pytest.importorskip("optimum.exporters.onnx")

    def stumble(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(optimum, "main_export", stumble)
    with pytest.raises(UnsupportedModelError, match=r"^[^\n]*optimum cannot .* \(--debug[^\n]*$"):
        export_with_optimum(gpt2[1], "gpt2", tmp_path)


@pytest.mark.parametrize("family", ["llava", "qwen2_vl", "idefics3", "internvl"])
def test_models_of_other_families_that_see_images_say_so(tmp_path: Path, family: str) -> None:
    config = {"model_type": family, "text_config": {"model_type": "llama"}, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=r"text_config is there, .*sees images"):
        find_recipeless(ExportConfig(str(tmp_path), tmp_path / "bundle"))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "qwen3_omni", "thinker_config": {}}, "thinker_config is there"),
        ({"model_type": "internvl_chat", "llm_config": {}}, "llm_config is there"),
        ({"model_type": "clip", "vision_config": {}}, "vision_config is there"),
        ({"model_type": "bart", "is_encoder_decoder": True}, "bart has an encoder and a decoder"),
        ({"model_type": "whisper", "is_encoder_decoder": True}, "whisper has an encoder"),
    ],
)
def test_models_with_more_than_a_decoder(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=words):
        find_recipeless(ExportConfig(str(tmp_path), tmp_path / "bundle"))


def test_a_size_that_only_transformers_knows_is_not_missed(tmp_path: Path) -> None:
    """What is missing is said by optimum, which knows the family."""
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "eos_token_id": 1}')
    assert RecipelessModel(tmp_path, "gpt2", None).special.eos_ids == (1,)


def test_without_optimum(gpt2: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(optimum_fallback, "find_spec", lambda name: None)
    expected = (
        r"family gpt2 has no recipe .*llama, .*qwen2.*pip install 'edgedec-runtime\[optimum\]'"
    )
    with pytest.raises(UnsupportedModelError, match=expected):
        export_with_optimum(gpt2[1], "gpt2", tmp_path)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("optimum.exporters.onnx")
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(CheckpointError, match=r"has no \*\.safetensors"):
        export_with_optimum(tmp_path, "gpt2", tmp_path)
