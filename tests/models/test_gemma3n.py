"""Gemma 3n's text models against transformers: streams, inputs of layers, shared keys."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from family_parity import SIZES, TOKENS, Logits, Tensors, Toy, WholePassParity, torch, transformers
from safetensors.torch import load_file, save_file

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.export.to_onnx.runners import FusedRunner
from edgedec.export.verifying.verify import compare_logits
from edgedec.models.errors import CheckpointError
from edgedec.models.families import gemma3n
from edgedec.models.fields import Fields
from edgedec.models.reference import ReferenceModel

pytestmark = pytest.mark.parity

WINDOW, N_SHARED, SPARSITY = 6, 3, (0.9, 0.7, 0.95, 0.0, 0.0, 0.0, 0.0, 0.0)
WIDTHS = [56, 56, 72, 56, 56, 40, 56, 56]
LOCAL = "sliding_attention"
KINDS = (LOCAL, LOCAL, "full_attention", LOCAL)


class TestParity(WholePassParity):
    SIZES = {
        **SIZES, "tie_word_embeddings": True, "num_hidden_layers": 8, "rope_theta": 1e6,
    }  # fmt: skip
    EXPECTED = {"family": "gemma3n", "has_value_norm": True, "n_streams": 4, "laurel_rank": 8}
    N_LAYER_INPUTS = 97
    ARCHITECTURE = "gemma3n"
    METADATA = {
        "attention.sliding_window": WINDOW, "attention.shared_kv_layers": N_SHARED,
        "altup.active_idx": 0, "altup.num_inputs": 4, "embedding_length_per_layer_input": 32,
        "final_logit_softcapping": 30.0,
    }  # fmt: skip
    LLAMA_CPP_DIFFERS = "it divides the variance of gates by one less, and has 10 sparse layers"
    REFUSED = {
        "attention_bias": True, "hidden_activation": "gelu", "altup_active_idx": 1,
        "altup_correct_scale": False,
    }  # fmt: skip

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.Gemma3nTextConfig(
            **{**cls.SIZES, "intermediate_size": WIDTHS},
            layer_types=KINDS * 2,
            sliding_window=WINDOW,
            num_kv_shared_layers=N_SHARED,
            activation_sparsity_pattern=list(SPARSITY),
            vocab_size_per_layer_input=cls.N_LAYER_INPUTS,
            hidden_size_per_layer_input=32,
            laurel_rank=8,
            attn_implementation="eager",
        )
        return transformers.Gemma3nForCausalLM(config)

    @classmethod
    def spread(cls, name: str) -> tuple[float, float]:
        """Norms of queries and keys make up for a scale of 1, as those of published models do."""
        return (
            (0.5, 0.1)
            if name.endswith(("q_norm.weight", "k_norm.weight"))
            else super().spread(name)
        )

    @classmethod
    def draw(cls, folder: Path) -> Toy:
        """As published: transformers 4 mistakes a part of one name for the name of the model."""
        toy = super().draw(folder)
        path = folder / "model.safetensors"
        tensors = {
            name.replace("per_layer_model.language_model_", "per_layer_model_"): tensor
            for name, tensor in load_file(path).items()
        }
        save_file(tensors, path, {"format": "pt"})
        return toy

    def write_header(self, writer: Any) -> None:
        super().write_header(writer)
        writer.add_feed_forward_length(WIDTHS)
        arch = self.ARCHITECTURE
        writer.add_array(
            f"{arch}.attention.sliding_window_pattern", [k == LOCAL for k in KINDS * 2]
        )
        deviations = [NormalDist().inv_cdf(s) if s else -np.inf for s in SPARSITY]
        writer.add_array(f"{arch}.activation_sparsity_scale", deviations)

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        """As the converter of llama.cpp: matrices of streams stacked."""
        kind, _, number = name.removeprefix("model.").removesuffix(".weight").partition(".")
        if kind.startswith("altup_"):
            if number == "0":
                theirs = kind.replace("projections", "proj").replace("unembed", "unembd")
                yield f"{theirs}.weight", self.stacks[kind]
        else:
            yield from super().gguf_tensors(f"{name}.weight" if "scale" in name else name, values)

    def write_gguf(self, toy: Toy, path: Path) -> Path:
        state = toy.model.state_dict()
        self.stacks = {
            kind: np.stack([state[f"model.{kind}.{i}.weight"].numpy() for i in range(3)])
            for kind in ("altup_projections", "altup_unembed_projections")
        }
        return super().write_gguf(toy, path)


def test_tokens_without_inputs_of_layers(tmp_path: Path) -> None:
    """They have those of token 0, as transformers 5 has it; 4 has a row for each."""
    toy = TestParity.draw(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size_per_layer_input": 70}))
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = "model.language_model.embed_tokens_per_layer.weight"
    table = toy.model.model.embed_tokens_per_layer.weight
    with torch.no_grad():
        table[70:] = table[0]
    tensors[name] = tensors[name][:70].contiguous()
    save_file(tensors, path, {"format": "pt"})
    assert max(TOKENS) >= 70
    logits = ReferenceModel(open_checkpoint(str(tmp_path))).forward(TOKENS).logits
    np.testing.assert_allclose(logits, toy.logits(TOKENS), atol=1e-4)
    entry = export(ExportConfig(str(tmp_path), tmp_path / "b")).manifest.target
    runner = FusedRunner(tmp_path / "b" / entry.graph, entry.config, len(TOKENS))
    logits = runner.run(TOKENS, range(-1, len(TOKENS) - 1))
    assert compare_logits(logits, toy.logits(TOKENS))["kl_nats"] < 1e-5


def test_absent_keys_are_those_of_transformers() -> None:
    sizes = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 30, "num_attention_heads": 8}
    fields = {**sizes, "vocab_size_per_layer_input": 9, "num_kv_shared_layers": 10}
    config = gemma3n.read_hf(Fields(fields, "config.json", CheckpointError))
    theirs = transformers.Gemma3nTextConfig(**fields)
    assert [layer.intermediate_size for layer in config.layers] == theirs.intermediate_size
    assert [bool(layer.window) for layer in config.layers] == [
        kind == LOCAL for kind in theirs.layer_types
    ]
    assert [layer.gate_sparsity for layer in config.layers] == theirs.activation_sparsity_pattern
    assert [layer.kv_layer for layer in config.layers[20:]] == [18, 18, 18, 18, 19] * 2
    assert (config.head_size, config.n_kv_heads) == (theirs.head_dim, theirs.num_key_value_heads)
    assert config.laurel_rank == theirs.laurel_rank
    assert config.layers[4].rope_theta == theirs.rope_theta
    assert config.layers[3].rope_theta == theirs.rope_local_base_freq
