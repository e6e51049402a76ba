"""Mixtral against transformers: experts that are stored one by one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_parity import FamilyParity, Logits, Tensors, gguf, paired, transformers

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.models.config import LayerConfig
from edgedec.models.errors import UnsupportedModelError

pytestmark = pytest.mark.parity


class TestParity(FamilyParity):
    EXPECTED = {"family": "mixtral", "n_experts": 5, "n_experts_used": 2, "layers": ()}
    ARCHITECTURE = "llama"
    METADATA = {"expert_count": 5, "expert_used_count": 2}
    REFUSED = {"hidden_act": "gelu"}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.MixtralConfig(**cls.SIZES, num_local_experts=5, num_experts_per_tok=2)
        return transformers.MixtralForCausalLM(config)

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        """Experts come one by one; they are held back until the last of a layer."""
        if (found := re.search(r"experts\.(\d+)\.", name)) is not None:
            name = name.replace(found[0], "experts.")
            held = self.__dict__.setdefault(name, [])
            held.append(values)
            if len(held) < 5:
                return
            values = np.stack(held)
        for theirs, stored in super().gguf_tensors(name, values):
            heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
            yield theirs, paired(stored, heads) if heads else stored


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
