"""RoBERTa and XLM-R against transformers."""

from __future__ import annotations

from typing import Any

import pytest

from ..parity.embedder_parity import SIZES, EmbedderParity

transformers = pytest.importorskip("transformers", reason="needs the dev extra")


class TestParity(EmbedderParity):
    EXPECTED = {"family": "roberta", "max_positions": 62, "n_token_types": 1}
    REFUSED = {"pad_token_id": 0}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.RobertaConfig(**SIZES, type_vocab_size=1)
        return transformers.RobertaModel(config)


class TestManyLanguages(EmbedderParity):
    EXPECTED = {"family": "roberta", "max_positions": 62}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.XLMRobertaConfig(**SIZES, type_vocab_size=1)
        return transformers.XLMRobertaModel(config)
