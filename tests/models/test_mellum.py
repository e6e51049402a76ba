"""Mellum 2: windows whose layers rotate plainly, and YaRN in the others.

The oracle is Qwen3's mixture of experts of transformers with those layers put in, since
transformers 4 has no such models. What transformers 5.24 makes of the same weights is kept in a
file, and the oracle has to give that.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_parity import (
    SIZES,
    TOKENS,
    FamilyParity,
    Logits,
    Tensors,
    Toy,
    gguf,
    gguf_architecture,
    torch,
    transformers,
)

from edgedec.models.config import LayerConfig

pytestmark = pytest.mark.parity

WINDOW, LOCAL_THETA = 6, 1e4
N_EXPERTS = 7
KINDS = ["sliding_attention"] * 3 + ["full_attention"]
YARN = {
    "rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "original_max_position_embeddings": 16, "attention_factor": 1.1386294361119891,
}  # fmt: skip
EXPECTED = Path(__file__).with_name("mellum_logits.npy")
"""Logits of transformers 5.24 for `TOKENS` and the weights of `TestParity`."""


class TestParity(FamilyParity):
    SIZES = {**SIZES, "rope_theta": 5e5}
    EXPECTED = {
        "family": "mellum",
        "n_experts": N_EXPERTS,
        "layers": (LayerConfig(24, LOCAL_THETA, WINDOW, has_rope_scaling=False),) * 3
        + (LayerConfig(24, 5e5),),
    }
    ARCHITECTURE = "mellum"
    METADATA = {
        "expert_count": N_EXPERTS, "expert_used_count": 4, "expert_feed_forward_length": 24,
        "attention.sliding_window": WINDOW, "rope.freq_base_swa": LOCAL_THETA,
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 16,
        "rope.scaling.yarn_attn_factor": YARN["attention_factor"],  # as llama.cpp's script writes
    }  # fmt: skip
    REFUSED = {"use_sliding_window": False, "mlp_layer_types": ["dense", "sparse"] * 2}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.Qwen3MoeConfig(
            **cls.SIZES, moe_intermediate_size=24, num_experts=N_EXPERTS, num_experts_per_tok=4,
            norm_topk_prob=True, rope_scaling=YARN,
        )  # fmt: skip
        model = transformers.Qwen3MoeForCausalLM(config)
        plain = transformers.Qwen3MoeConfig(**{**cls.SIZES, "rope_theta": LOCAL_THETA})
        rotate = type(model.model.rotary_emb)(plain)

        def in_window(_: Any, arguments: Any, named: dict[str, Any]) -> Any:
            places = torch.arange(arguments[0].shape[1])
            behind = places[:, None] - places
            seen = (behind >= 0) & (behind < WINDOW)
            named["attention_mask"] = torch.where(seen, 0.0, -torch.inf)[None, None]
            named["position_embeddings"] = rotate(arguments[0], places[None])
            return arguments, named

        for layer, kind in zip(model.model.layers, KINDS, strict=True):
            if kind == "sliding_attention":
                layer.register_forward_pre_hook(in_window, with_kwargs=True)
        return model

    @classmethod
    def save(cls, model: Any, folder: Path) -> None:
        super().save(model, folder)
        path = folder / "config.json"
        fields = json.loads(path.read_text())
        for key in ("rope_scaling", "rope_theta", "decoder_sparse_step", "mlp_only_layers"):
            fields.pop(key, None)
        fields |= {
            "model_type": "mellum", "architectures": ["MellumForCausalLM"], "layer_types": KINDS,
            "mlp_layer_types": ["sparse"] * 4, "sliding_window": WINDOW, "use_sliding_window": True,
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": LOCAL_THETA},
            },
        }  # fmt: skip
        path.write_text(json.dumps(fields))

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        if (whole := self.stacked_experts(name, values, N_EXPERTS)) is not None:
            names = gguf.get_tensor_name_map(gguf_architecture("qwen3moe"), len(KINDS))
            yield names.get_name(whole[0], (".weight",)), whole[1]

    def test_the_oracle_gives_what_transformers_5_gives(self, toy: Toy) -> None:
        np.testing.assert_allclose(toy.logits(TOKENS), np.load(EXPECTED), atol=2e-5)
