"""EmbeddingGemma against transformers: Gemma 3 whose rows all see each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.models.reference import ReferenceModel

from ..parity.embedder_parity import TOKENS, EmbedderParity
from ..parity.family_parity import SIZES

gguf = pytest.importorskip("gguf", reason="needs the dev extra")
transformers = pytest.importorskip("transformers", reason="needs the dev extra")

WINDOW = 9


def write_gguf(model: Any, dense: list[Any], path: Path) -> Path:
    """Writes the model as llama.cpp's converter does.

    Source: ggml-org/llama.cpp ``convert_hf_to_gguf.py`` ``EmbeddingGemma`` (MIT).
    """
    name, config = "gemma-embedding", model.config
    writer = gguf.GGUFWriter(path, name)
    writer.add_tokenizer_model("none")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_float32(f"{name}.rope.freq_base_swa", config.rope_local_base_freq)
    writer.add_float32(f"{name}.attention.scale", config.query_pre_attn_scalar**-0.5)
    writer.add_uint32(f"{name}.attention.sliding_window", WINDOW)
    writer.add_uint32(f"{name}.attention.sliding_window_pattern", 4)
    writer.add_uint32(f"{name}.pooling_type", 1)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA_EMBEDDING, config.num_hidden_layers)
    for weight, values in model.state_dict().items():
        theirs = names.get_name(f"model.{weight}", (".weight",))
        writer.add_tensor(theirs, values.numpy() + ("norm" in weight))
    for i, values in enumerate(dense):
        writer.add_tensor(f"dense_{i + 2}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class TestParity(EmbedderParity):
    """Norms are stored without their one. Texts are longer than the window."""

    NORM_MEAN = 0.0
    EXPECTED = {
        "family": "gemma3", "stack": "embedder", "has_post_norms": True, "has_qk_norm": True,
        "windowed_layers": (), "logit_softcap": 0.0,
    }  # fmt: skip

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.Gemma3TextConfig(
            **{**SIZES, "num_hidden_layers": 4, "tie_word_embeddings": True},
            sliding_window=WINDOW, use_bidirectional_attention=True, query_pre_attn_scalar=20,
            rope_local_base_freq=500.0,
            layer_types=["sliding_attention"] * 3 + ["full_attention"],
        )  # fmt: skip
        return transformers.Gemma3TextModel(config)

    @classmethod
    def save(cls, model: Any, folder: Path) -> None:
        """Published files state the window that the class halves once more."""
        super().save(model, folder)
        fields = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**fields, "sliding_window": WINDOW}))

    def test_gguf(self, toy: Any, tmp_path: Path) -> None:
        """With pooling and dense matrices, the norms with their one."""
        rng = np.random.default_rng(1)
        dense = [rng.normal(size=shape).astype(np.float32) for shape in ((12, 40), (40, 12))]
        path = write_gguf(toy.model, dense, tmp_path / "m.gguf")
        checkpoint = open_checkpoint(str(path))
        assert [checkpoint.config.layer(i).window for i in range(4)] == [5, 5, 5, 0]
        self.close(ReferenceModel(checkpoint).forward(TOKENS).logits, toy.rows(TOKENS))
        assert checkpoint.embedding is not None
        assert checkpoint.embedding.config.pooling == "mean"
        pooled = toy.rows(TOKENS).mean(axis=0).astype(np.float64)
        expected = pooled @ dense[0].T @ dense[1].T
        for layer in checkpoint.embedding.dense:
            pooled = layer.of(pooled)
        np.testing.assert_allclose(pooled, expected, rtol=1e-4, atol=1e-4)

    def test_windows(self, toy: Any) -> None:
        config = open_checkpoint(str(toy.folder)).config
        assert toy.model.config.sliding_window == 5
        assert [config.layer(i).window for i in range(4)] == [5, 5, 5, 0]
