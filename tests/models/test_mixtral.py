"""Mixtral against transformers: experts that are stored one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from family_parity import FamilyParity, Logits, Tensors, gguf, transformers

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.models.config import LayerConfig
from edgedec.models.errors import UnsupportedModelError

pytestmark = pytest.mark.parity


class TestParity(FamilyParity):
    EXPECTED = {"family": "mixtral", "n_experts": 5, "n_experts_used": 2, "layers": ()}
    ARCHITECTURE = "llama"
    HAS_PAIRED_HEADS = True
    METADATA = {"expert_count": 5, "expert_used_count": 2}
    REFUSED = {"hidden_act": "gelu"}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.MixtralConfig(**cls.SIZES, num_local_experts=5, num_experts_per_tok=2)
        return transformers.MixtralForCausalLM(config)

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        if (whole := self.stacked_experts(name, values, 5)) is None:
            return
        name, values = whole
        yield from super().gguf_tensors(name, values)


class TestWithWindow(FamilyParity):
    EXPECTED = {"layers": (LayerConfig(56, 1e4, window=6),) * 4}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.MixtralConfig(
            **cls.SIZES, num_local_experts=5, num_experts_per_tok=2, sliding_window=6
        )
        return transformers.MixtralForCausalLM(config)


def test_gguf_files_are_those_of_llama(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mixtral")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="'mixtral', expected 'llama'"):
        open_checkpoint(str(tmp_path / "m.gguf"))
