"""BERT and MiniLM against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.models.reference import ReferenceModel

from ..parity.embedder_parity import SIZES, TOKENS, EmbedderParity, EncoderToy

torch = pytest.importorskip("torch", reason="needs the dev extra")
transformers = pytest.importorskip("transformers", reason="needs the dev extra")


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


class TestTanh(EmbedderParity):
    EXPECTED = {"activation": "gelu_tanh"}

    @classmethod
    def make_model(cls) -> Any:
        return transformers.BertModel(transformers.BertConfig(**SIZES, hidden_act="gelu_new"))
