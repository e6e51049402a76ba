"""Errors about healthy files name their layout, and say what to do."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.errors import EdgedecError, UnsupportedModelError
from tests.export.conftest import tiny_weights

pytestmark = pytest.mark.robustness

GgufMaker = Callable[..., Path]
CONFIG = {
    "model_type": "llama", "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def refusal(source: Path) -> str:
    with pytest.raises(EdgedecError) as caught:
        open_checkpoint(str(source))
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


@pytest.mark.parametrize(
    ("name", "option"), [("tf_model.h5", "from_tf"), ("flax_model.msgpack", "from_flax")]
)
def test_weights_of_other_libraries(tmp_path: Path, name: str, option: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / name).write_bytes(b"x")
    assert f"its weights are in {name} alone; convert them" in refusal(tmp_path)
    assert f"{option}=True" in refusal(tmp_path)


def test_settings_in_another_encoding(tmp_path: Path) -> None:
    text = json.dumps({**CONFIG, "author": "J\u00fcrgen"}, ensure_ascii=False)
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    assert "iconv -f LATIN1 -t UTF-8 config.json" in refusal(tmp_path)


def in_latin_1(path: Path, text: str) -> Path:
    """Returns a copy of a GGUF file in which ``text`` is in Latin-1, padded to the same length."""
    data, old = path.read_bytes(), text.encode()
    new = text.encode("latin-1")
    new += b" " * (len(old) - len(new))
    assert data.count(struct.pack("<Q", len(old)) + old) == 1
    copy = path.with_name("latin.gguf")
    copy.write_bytes(data.replace(old, new))
    return copy


def test_remarks_in_another_encoding(make_gguf: GgufMaker, tmp_path: Path) -> None:
    author = make_gguf("llama", metadata={"general.author": "J\u00fcrgen M\u00fcller"})
    source = in_latin_1(author, "J\u00fcrgen M\u00fcller")
    export(ExportConfig(str(source), tmp_path / "b.edgedec"))


def test_templates_in_another_encoding(make_gguf: GgufMaker) -> None:
    made = make_gguf("llama", metadata={"tokenizer.chat_template": "\u00dcber {{ messages }}"})
    text = refusal(in_latin_1(made, "\u00dcber {{ messages }}"))
    assert "tokenizer.chat_template is not UTF-8 text" in text
    assert "convert the model again, with this text in UTF-8" in text


def test_adapters_in_gguf_files(make_gguf: GgufMaker) -> None:
    text = refusal(make_gguf("llama", metadata={"general.type": "adapter"}))
    assert "export the model that it adapts, with --lora" in text


def test_qwen2_without_biases(make_gguf: GgufMaker, tmp_path: Path) -> None:
    weights: dict[str, Any] = tiny_weights(has_bias=True)
    without = {name: None for name in weights if name.endswith(".bias")}
    done = export(ExportConfig(str(make_gguf("qwen2", weights=without)), tmp_path / "b.edgedec"))
    assert not done.manifest.target.config.has_qkv_bias


@pytest.mark.parametrize(
    ("factor", "remedy"),
    [(1e5, {"kv_format": "int8"}), (1e8, {"device_target": "portable"})],
)
def test_values_beyond_float16(
    make_gguf: GgufMaker, tmp_path: Path, factor: float, remedy: dict[str, Any]
) -> None:
    weights = tiny_weights()
    for name, values in weights.items():
        if name.endswith("attn_v.weight"):
            values *= factor
        if name.endswith("attn_output.weight"):
            values /= factor
    source = make_gguf("llama", weights=weights)
    with pytest.raises(UnsupportedModelError) as caught:
        export(ExportConfig(str(source), tmp_path / "b.edgedec"))
    option = "--kv-cache int8" if "kv_format" in remedy else "--target portable"
    assert f"more than float16 holds: export it with {option}" in str(caught.value)
    export(ExportConfig(str(source), tmp_path / "c.edgedec", **remedy))
