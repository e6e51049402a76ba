"""Gemma 3n's text models against transformers: streams, inputs of layers, shared keys."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, ClassVar

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
from edgedec.models.reference import ReferenceModel, ReferenceOps

pytestmark = pytest.mark.parity

WINDOW = 6
LOCAL = "sliding_attention"
FULL = "full_attention"


@dataclass(frozen=True)
class Layers:
    """What the layers of a toy are. are_as_usual: kinds come in the order that files leave out."""

    kinds: tuple[str, ...] = (LOCAL, LOCAL, FULL, LOCAL) * 2
    widths: tuple[int, ...] = (56, 56, 72, 56, 56, 40, 56, 56)
    sparsity: tuple[float, ...] = (0.9, 0.7, 0.95, 0.0, 0.0, 0.0, 0.0, 0.0)
    n_shared: int = 3
    rank: int = 8
    input_size: int = 32
    are_as_usual: bool = False


class TestParity(WholePassParity):
    SIZES = {
        **SIZES, "tie_word_embeddings": True, "num_hidden_layers": 8, "rope_theta": 1e6,
    }  # fmt: skip
    EXPECTED = {"family": "gemma3n", "has_value_norm": True, "n_streams": 4, "laurel_rank": 8}
    N_LAYER_INPUTS = 97
    ARCHITECTURE = "gemma3n"
    METADATA = {
        "attention.sliding_window": WINDOW, "attention.shared_kv_layers": 3,
        "altup.active_idx": 0, "altup.num_inputs": 4, "embedding_length_per_layer_input": 32,
        "final_logit_softcapping": 30.0,
    }  # fmt: skip
    LLAMA_CPP_DIFFERS = "it has models of more layers alone, see below"
    LAYERS = Layers()
    REFUSED = {
        "attention_bias": True, "hidden_activation": "gelu", "altup_active_idx": 1,
        "altup_correct_scale": False,
    }  # fmt: skip

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.Gemma3nTextConfig(
            **{**cls.SIZES, "intermediate_size": list(cls.LAYERS.widths)},
            layer_types=list(cls.LAYERS.kinds),
            sliding_window=WINDOW,
            num_kv_shared_layers=cls.LAYERS.n_shared,
            activation_sparsity_pattern=list(cls.LAYERS.sparsity),
            vocab_size_per_layer_input=cls.N_LAYER_INPUTS,
            hidden_size_per_layer_input=cls.LAYERS.input_size,
            laurel_rank=cls.LAYERS.rank,
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
        writer.add_feed_forward_length(list(self.LAYERS.widths))
        arch = self.ARCHITECTURE
        if not self.LAYERS.are_as_usual:
            local = [kind == LOCAL for kind in self.LAYERS.kinds]
            writer.add_array(f"{arch}.attention.sliding_window_pattern", local)
        deviations = [NormalDist().inv_cdf(s) if s else -np.inf for s in self.LAYERS.sparsity]
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


class AsPublished(TestParity):
    """Sizes that llama.cpp takes for granted: layers that share keys, sparse ones, width of inputs.

    It is 1.32 of the spread away as it is, 0.018 with its variance, 0.0013 with its GELU, too.
    """

    SIZES: ClassVar[dict[str, Any]] = {**TestParity.SIZES, "num_hidden_layers": 22}
    LAYERS = Layers(
        kinds=((LOCAL,) * 4 + (FULL,)) * 4 + (LOCAL,) * 2,
        widths=(56,) * 22,
        sparsity=(0.95,) * 10 + (0.0,) * 12,
        n_shared=2,
        rank=64,
        input_size=256,
        are_as_usual=True,
    )
    MAX_LLAMA_CPP_ERROR = 2e-3  # over 22 layers of GELU in halves
    METADATA: ClassVar[dict[str, Any]] = {
        **TestParity.METADATA,
        "attention.shared_kv_layers": 2, "embedding_length_per_layer_input": 256,
    }  # fmt: skip
    LLAMA_CPP_DIFFERS = ""


def largest_of_llama_cpp(ops: ReferenceOps, x: Logits, sparsity: float) -> Logits:
    """Divides the variance by one less."""
    deviations = np.float32(NormalDist().inv_cdf(sparsity))
    limit = x.mean(-1, keepdims=True) + x.std(-1, keepdims=True, ddof=1) * deviations
    return np.maximum(x - limit, 0)


@pytest.mark.models
def test_a_model_as_published_in_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = AsPublished.draw(tmp_path)
    monkeypatch.setattr(ReferenceOps, "largest", largest_of_llama_cpp)
    AsPublished().test_gguf_in_llama_cpp(toy, tmp_path, monkeypatch)


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
    logits = runner.compute_logits(TOKENS, range(-1, len(TOKENS) - 1))
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
