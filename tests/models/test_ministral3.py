"""Ministral 3: Mistral beside images, and queries that grow beyond the first trained context.

The oracle is Mistral of transformers 4; a hook makes its queries grow as those of transformers 5
(``modeling_ministral3.py`` ``get_llama_4_attn_scale``) do, before their rotation, which commutes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_parity import TOKENS, FamilyParity, Toy, torch, transformers

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families import ministral3, mistral3
from edgedec.models.families._gguf import GgufFacts
from edgedec.models.fields import Fields
from edgedec.models.reference import ReferenceModel

pytestmark = pytest.mark.parity

BETA, START, FACTOR = 0.4, 8, 4.0
YARN = {
    "rope_type": "yarn", "factor": FACTOR, "original_max_position_embeddings": START,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip


def grow(module: Any, args: Any, q: Any) -> Any:
    positions = torch.arange(q.shape[1])
    return q * (1 + BETA * torch.log(1 + torch.floor(positions / START)))[:, None]


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


class TestParity(FamilyParity):
    EXPECTED = {"family": "ministral3", "query_growth": BETA, "query_growth_start": START}
    ARCHITECTURE = "mistral3"
    HAS_PAIRED_HEADS = True
    METADATA = {
        "attention.temperature_scale": BETA,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": FACTOR,
        "rope.scaling.original_context_length": START,
        "rope.scaling.yarn_log_multiplier": 1.0,
    }
    REFUSED = {"hidden_act": "gelu"}

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.MistralConfig(**cls.SIZES, rope_scaling=YARN, sliding_window=None)
        model = transformers.MistralForCausalLM(config)
        for layer in model.model.layers:
            layer.self_attn.q_proj.register_forward_hook(grow)
        return model

    @classmethod
    def draw(cls, folder: Path) -> Toy:
        toy = super().draw(folder)
        rope = {**YARN, "rope_theta": 1e4, "llama_4_scaling_beta": BETA}
        edit_config(folder, model_type="ministral3", rope_parameters=rope)
        return toy


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_model_beside_images(tmp_path: Path, prefix: str) -> None:
    """As transformers 4 names its weights, and as 5 does."""
    toy = TestParity.draw(tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())
    outer = {"model_type": "mistral3", "text_config": text, "vision_config": {"hidden_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    from safetensors.torch import load_file, save_file

    path = tmp_path / "model.safetensors"
    tensors = {
        f"{prefix}{name.removeprefix('model.')}" if name.startswith("model.") else name: tensor
        for name, tensor in load_file(path).items()
    }
    more = ("vision_tower.ln_pre.weight", "multi_modal_projector.linear_1.weight")
    save_file({**tensors, **{name: torch.ones(3) for name in more}}, path, {"format": "pt"})
    logits = ReferenceModel(open_checkpoint(str(tmp_path))).forward(TOKENS).logits
    np.testing.assert_allclose(logits, toy.logits(TOKENS), atol=1e-4)


def test_absent_keys_are_those_of_transformers() -> None:
    sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    fields = {**sizes, "num_attention_heads": 8}
    config = ministral3.read_hf(Fields(fields, "config.json", CheckpointError))
    assert (config.head_size, config.n_kv_heads, config.max_positions) == (128, 8, 262144)
    assert (config.query_growth, config.query_growth_start, config.rope_theta) == (0.1, 16384, 1e6)
    assert config.rope_scaling.factor == 1.0


def test_other_names() -> None:
    facts = GgufFacts(Fields({}, "m.gguf", CheckpointError), {})
    with pytest.raises(UnsupportedModelError, match="'ministral3', expected 'mistral3'"):
        ministral3.read_gguf(facts)
    with pytest.raises(CheckpointError, match="text_config is missing"):
        mistral3.read_hf(Fields({}, "config.json", CheckpointError))
