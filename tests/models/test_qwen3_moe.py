"""Qwen3's mixtures of experts against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from family_parity import SIZES, FamilyParity, Logits, Tensors, transformers

from edgedec import EngineOptions, GenerationConfig, SpeculationConfig, load
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families import find_family
from edgedec.models.fields import Fields

pytestmark = pytest.mark.parity

EXPERTS = {"moe_intermediate_size": 24, "num_experts": 7, "num_experts_per_tok": 4}


class TestParity(FamilyParity):
    EXPECTED = {"family": "qwen3_moe", "n_experts": 7, "n_experts_used": 4, "intermediate_size": 24}
    ARCHITECTURE = "qwen3moe"
    METADATA = {"expert_count": 7, "expert_used_count": 4, "expert_feed_forward_length": 24}
    REFUSED = {"decoder_sparse_step": 2, "use_sliding_window": True}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.Qwen3MoeConfig(**cls.SIZES, **EXPERTS, norm_topk_prob=True)
        return transformers.Qwen3MoeForCausalLM(config)

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        if (whole := self.stacked_experts(name, values, EXPERTS["num_experts"])) is not None:
            yield from super().gguf_tensors(*whole)

    @pytest.mark.parametrize("method", ["auto", "lookup"])
    def test_drafts_change_no_token(self, bundle: Path, method: str) -> None:
        """Rows of drafts choose experts of their own, and leave those of others alone.

        With a stated budget a method drafts whatever a pass costs here.
        """
        budget = SpeculationConfig(draft_len=4) if method == "lookup" else SpeculationConfig()
        with load(bundle, EngineOptions(threads=2)) as engine:
            plain, drafted = (
                engine.generate(
                    "abcabcabcab",
                    GenerationConfig(
                        max_new_tokens=48, method=name, ignore_eos=True, speculation=speculation
                    ),
                )
                for name, speculation in (("plain", SpeculationConfig()), (method, budget))
            )
        assert plain.token_ids == drafted.token_ids
        assert drafted.stats.n_accepted > 0 or method == "auto"  # which goes by the clock


class TestWithoutNorm(FamilyParity):
    """The weights of the chosen experts do not sum to 1."""

    EXPECTED = {"is_routing_normed": False}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.Qwen3MoeConfig(**cls.SIZES, **EXPERTS, norm_topk_prob=False)
        return transformers.Qwen3MoeForCausalLM(config)


def test_layers_without_experts_are_refused() -> None:
    fields = Fields({**SIZES, **EXPERTS, "mlp_only_layers": [0]}, "config.json", CheckpointError)
    with pytest.raises(UnsupportedModelError, match=r"mlp_only_layers is a list of 1, only \[\]"):
        find_family("qwen3_moe").read_hf(fields)
