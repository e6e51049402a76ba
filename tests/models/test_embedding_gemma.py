"""EmbeddingGemma against transformers: Gemma 3 whose rows all see each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgedec.export.checkpoints.checkpoint import open_checkpoint

from ..parity.embedder_parity import EmbedderParity
from ..parity.family_parity import SIZES

transformers = pytest.importorskip("transformers", reason="needs the dev extra")

WINDOW = 9


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

    def test_windows(self, toy: Any) -> None:
        config = open_checkpoint(str(toy.folder)).config
        assert toy.model.config.sliding_window == 5
        assert [config.layer(i).window for i in range(4)] == [5, 5, 5, 0]
