"""Mistral against transformers: with the sliding window of its first versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from family_parity import FamilyParity, gguf, transformers

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.models.config import LayerConfig
from edgedec.models.errors import UnsupportedModelError

pytestmark = pytest.mark.parity

WINDOW = 6


class TestParity(FamilyParity):
    EXPECTED = {"family": "mistral", "layers": (LayerConfig(56, 1e4, window=WINDOW),) * 4}
    REFUSED = {"hidden_act": "gelu"}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.MistralConfig(**cls.SIZES, sliding_window=WINDOW)
        return transformers.MistralForCausalLM(config)


class TestWithoutWindow(FamilyParity):
    EXPECTED = {"family": "mistral", "layers": ()}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.MistralConfig(**cls.SIZES, sliding_window=None)
        return transformers.MistralForCausalLM(config)


def test_gguf_files_are_those_of_llama(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mistral")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="'mistral', expected 'llama'"):
        open_checkpoint(str(tmp_path / "m.gguf"))
