"""BERT and MiniLM against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from edgedec import load
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.reference import ReferenceModel

from ..parity.embedder_parity import SIZES, TOKENS, EmbedderParity, EncoderToy
from ..tiny_encoder import WORDS, wordpiece, write_encoder

torch = pytest.importorskip("torch", reason="needs the dev extra")
gguf = pytest.importorskip("gguf", reason="needs the dev extra")
transformers = pytest.importorskip("transformers", reason="needs the dev extra")

TEXTS = ["Bread needs flour.", "rockets \u00c9 fuel", "", "xyz", "[SEP] floury: query"]


class TestParity(EmbedderParity):
    EXPECTED = {
        "family": "bert", "stack": "embedder", "n_logits": 40, "activation": "gelu",
        "max_positions": 64, "n_token_types": 2,
    }  # fmt: skip
    REFUSED = {
        "hidden_act": "silu", "position_embedding_type": "relative_key", "is_decoder": True,
        "add_cross_attention": True,
    }  # fmt: skip

    @classmethod
    def make_model(cls) -> Any:
        return transformers.BertModel(transformers.BertConfig(**SIZES))

    @pytest.mark.parametrize("prefix", ["", "bert."])
    def test_names_of_old_files(self, toy: EncoderToy, tmp_path: Path, prefix: str) -> None:
        """Heads of pre-training are left out; norms had other names."""
        for file in toy.folder.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        tensors = load_file(tmp_path / "model.safetensors")
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for name in list(tensors):
            new = name
            for ours, theirs in old.items():
                new = new.replace(ours, theirs)
            tensors[prefix + new] = tensors.pop(name)
        tensors["cls.predictions.bias"] = tensors[f"{prefix}pooler.dense.bias"]
        save_file(tensors, tmp_path / "model.safetensors")
        rows = ReferenceModel(open_checkpoint(str(tmp_path))).forward(TOKENS).logits
        self.close(rows, toy.rows(TOKENS))


GGUF_NAMES = {
    "embeddings.word_embeddings": "token_embd", "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q", "attention.self.key": "attn_k",
    "attention.self.value": "attn_v", "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}  # fmt: skip


def test_names_of_gguf_files_are_llama_cpp_s() -> None:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, 2)
    for theirs, ours in GGUF_NAMES.items():
        layer = "" if theirs.startswith("embeddings") else "encoder.layer.1."
        stem = "" if theirs.startswith("embeddings") else "blk.1."
        assert names.get_name(f"{layer}{theirs}.weight", (".weight",)) == f"{stem}{ours}.weight"


def write_gguf(model: Any, path: Path, pooling: int | None) -> Path:
    """Writes a model of `tests.tiny_encoder` as llama.cpp's converter does.

    Source: ggml-org/llama.cpp ``convert_hf_to_gguf.py`` ``BertModel`` (MIT).
    """
    config, writer = model.config, gguf.GGUFWriter(path, "bert")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)
    if pooling is not None:
        writer.add_uint32("bert.pooling_type", pooling)
    writer.add_tokenizer_model("bert")
    writer.add_token_type_count(config.type_vocab_size)
    writer.add_token_list([phantom(word) for word in WORDS])
    writer.add_token_types([3 if word.startswith("[") else 1 for word in WORDS])
    writer.add_uint32("tokenizer.ggml.cls_token_id", 2)
    writer.add_uint32("tokenizer.ggml.seperator_token_id", 3)
    for name, values in model.state_dict().items():
        if name.startswith("pooler") or name.endswith("position_ids"):
            continue
        layer = name.split(".")[2] if name.startswith("encoder") else ""
        stem, _, part = name.removeprefix(f"encoder.layer.{layer}.").rpartition(".")
        prefix = f"blk.{layer}." if layer else ""
        writer.add_tensor(f"{prefix}{GGUF_NAMES[stem]}.{part}", values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def phantom(word: str) -> str:
    if word.startswith("["):
        return word
    return word[2:] if word.startswith("##") else "\u2581" + word


@pytest.mark.parametrize(("stated", "pooling"), [(None, "mean"), (1, "mean"), (2, "cls")])
def test_gguf(tmp_path: Path, stated: int | None, pooling: str) -> None:
    """Tokens and vectors are those of the directory."""
    write_encoder(tmp_path / "m", f"{pooling}_token{'s' * (pooling == 'mean')}")
    model = transformers.BertModel.from_pretrained(tmp_path / "m")
    path = write_gguf(model, tmp_path / "m.gguf", stated)
    ours = Tokenizer.from_str(open_checkpoint(str(path)).tokenizer_json())
    for text in TEXTS:
        assert ours.encode(text).ids == wordpiece().encode(text).ids
    found = []
    for source, name in ((tmp_path / "m", "a"), (path, "b")):
        report = export(ExportConfig(str(source), tmp_path / name, device_target="portable"))
        assert bool(report.warnings) == (source == path and stated is None)
        with load(tmp_path / name) as engine:
            found.append(engine.embed(TEXTS))
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)


class TestTanh(EmbedderParity):
    EXPECTED = {"activation": "gelu_tanh"}

    @classmethod
    def make_model(cls) -> Any:
        return transformers.BertModel(transformers.BertConfig(**SIZES, hidden_act="gelu_new"))
