"""EAGLE-3 heads as SpecForge and AngelSlim lay them out, against torch on random weights.

The oracle computes what SpecForge's ``llama3_eagle.py`` states: `fc`, norms of token and state side
by side, attention over both, and a residual stream of the state alone.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

from edgedec import EngineOptions, GenerationConfig, SamplingConfig, load
from edgedec.export.config import ExportConfig
from edgedec.export.heads import attached
from edgedec.export.pipeline import export
from edgedec.export.verifying.verify import compare_logits
from edgedec.kernels.library import has_library
from edgedec.models.draft_heads import EAGLE3, OUTPUT, head_features, own_features
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.manifest import read_manifest
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from tests.models import test_llama_mlp_bias as toys
from tests.parity.family_parity import SIZES, TOKENS, Logits, Toy, torch

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not has_library(), reason="the kernel library is not built"),
]
CONTEXT, N_DRAFT = 400, 41
LAYERS = (1, 2, 3)
CONFIG: dict[str, Any] = {
    **SIZES, "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
    "num_hidden_layers": 1, "draft_vocab_size": N_DRAFT, "intermediate_size": 48,
    "num_key_value_heads": 4, "max_position_embeddings": CONTEXT,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in LAYERS]},
}  # fmt: skip


class Plain(toys.TestParity):
    """Llama with room for texts."""

    SIZES = {**SIZES, "max_position_embeddings": CONTEXT}


class Oracle:
    """The head in torch. tensors: by their names in the publisher's file."""

    def __init__(self, embedding: Any) -> None:
        torch.manual_seed(5)
        size, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
        n_heads, n_kv, width = 4, CONFIG["num_key_value_heads"], CONFIG["head_dim"]
        shapes = {
            "fc.weight": (size, 3 * size),
            "midlayer.self_attn.q_proj.weight": (n_heads * width, 2 * size),
            "midlayer.self_attn.k_proj.weight": (n_kv * width, 2 * size),
            "midlayer.self_attn.v_proj.weight": (n_kv * width, 2 * size),
            "midlayer.self_attn.o_proj.weight": (size, n_heads * width),
            "midlayer.mlp.gate_proj.weight": (inner, size),
            "midlayer.mlp.up_proj.weight": (inner, size),
            "midlayer.mlp.down_proj.weight": (size, inner),
            "lm_head.weight": (N_DRAFT, size),
        }
        self.tensors = {
            name: torch.randn(shape) * 1.5 * shape[1] ** -0.5 for name, shape in shapes.items()
        }
        for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
            self.tensors[f"midlayer.{name}.weight"] = 1 + 0.3 * torch.randn(size)
        self.tensors["norm.weight"] = 1 + 0.3 * torch.randn(size)
        ids = torch.randperm(CONFIG["vocab_size"])[:N_DRAFT].sort().values
        self.tensors["d2t"] = ids - torch.arange(N_DRAFT)
        self.tensors["t2d"] = torch.isin(torch.arange(CONFIG["vocab_size"]), ids)
        self.embedding = embedding

    def write(self, folder: Path, config: dict[str, Any] | None = None, **tensors: Any) -> Path:
        """Writes the folder with other tensors or keys; None leaves one out."""
        folder.mkdir()
        kept = {k: v for k, v in (self.tensors | tensors).items() if v is not None}
        save_file({k: v.contiguous() for k, v in kept.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(CONFIG | (config or {})))
        return folder

    def __call__(self, tokens: list[int], state: Any) -> tuple[Logits, Any]:
        """Returns logits and outputs of ``tokens`` beside states that `fc` is behind [T, D]."""
        embedded = self.embedding(torch.tensor(tokens))
        h = torch.cat(
            [self.norm(embedded, "midlayer.input_layernorm"),
             self.norm(state, "midlayer.hidden_norm")], dim=-1
        )  # fmt: skip
        x = state + self.attention(h)
        y = self.norm(x, "midlayer.post_attention_layernorm")
        gate = torch.nn.functional.silu(self.linear(y, "midlayer.mlp.gate_proj"))
        x = x + self.linear(gate * self.linear(y, "midlayer.mlp.up_proj"), "midlayer.mlp.down_proj")
        return self.linear(self.norm(x, "norm"), "lm_head").numpy(), x

    def attention(self, h: Any) -> Any:
        parts = [self.linear(h, f"midlayer.self_attn.{part}_proj") for part in "qkv"]
        width = CONFIG["head_dim"]
        q, k, v = (x.unflatten(-1, (-1, width)).transpose(0, 1) for x in parts)
        kept_k, kept_v = (x.half().float() for x in (self.rotate(k), v))  # as a KV cache holds them
        attended = torch.nn.functional.scaled_dot_product_attention(
            self.rotate(q), kept_k, kept_v, is_causal=True
        )
        return self.linear(attended.transpose(0, 1).flatten(1), "midlayer.self_attn.o_proj")

    def rotate(self, x: Any) -> Any:
        """Rotates halves of heads [heads, T, width] by their positions."""
        half = x.shape[-1] // 2
        rates = CONFIG["rope_theta"] ** (-torch.arange(half) / half)
        angles = torch.arange(x.shape[1])[:, None] * rates
        a, b = x[..., :half], x[..., half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def linear(self, x: Any, name: str) -> Any:
        return x @ self.tensors[f"{name}.weight"].T

    def norm(self, x: Any, name: str) -> Any:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + CONFIG["rms_norm_eps"])
        return x * scale * self.tensors[f"{name}.weight"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return Plain.draw(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def oracle(toy: Toy) -> Oracle:
    return Oracle(toy.model.model.embed_tokens)


def states(toy: Toy, tokens: list[int]) -> Logits:
    """Returns the states behind the layers that the head reads, side by side [T, 3 * D]."""
    with torch.inference_mode():
        found = toy.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    joined: Logits = torch.cat([found[layer][0] for layer in LAYERS], dim=-1).numpy()
    return joined


def test_the_graph_computes_what_torch_does(
    toy: Toy, oracle: Oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows behind the model's states, then one more behind the head's own output."""
    monkeypatch.setattr(attached, "_SCHEME", "keep")
    folder, bundle = oracle.write(tmp_path / "head"), tmp_path / "b"
    export(ExportConfig(str(toy.folder), bundle, head=folder))
    entry = read_manifest(bundle).head
    assert entry is not None
    assert (entry.kind, entry.hidden_layers) == (EAGLE3, LAYERS)
    assert entry.head.config.n_kv_heads == CONFIG["num_key_value_heads"]
    read = states(toy, TOKENS)[:-1]
    with torch.inference_mode():
        known = torch.tensor(read) @ oracle.tensors["fc.weight"].T
        expected, outputs = oracle(TOKENS[1:], known)
        deep, _ = oracle([*TOKENS[1:], 9], torch.cat([known, outputs[-1:]]))
    size, model = CONFIG["hidden_size"], open_model(bundle, entry.head, 1)
    sequence, n = TokenSequence(model, CONTEXT), len(TOKENS) - 1
    hidden = {layer: read[:, i * size : (i + 1) * size] for i, layer in enumerate(LAYERS)}
    chain = TokenTree.chain(TOKENS[1:])
    features = head_features(hidden, LAYERS, None)
    rows = sequence.run(Pass(sequence, chain, range(n), (OUTPUT,), features=features))
    np.testing.assert_allclose(rows.logits, expected, atol=1e-4 * np.std(expected))
    np.testing.assert_allclose(rows.hidden[OUTPUT], outputs, atol=1e-4 * float(outputs.std()))
    sequence.commit(range(n))
    own = own_features(rows.hidden[OUTPUT][-1:].copy(), 3)
    rows = sequence.run(Pass(sequence, TokenTree.chain([9]), (0,), features=own))
    np.testing.assert_allclose(rows.logits, deep[-1:], atol=1e-4 * np.std(expected))
    release_model(model)


def test_eight_bits_and_unordered_ids_say_the_same(
    toy: Toy, oracle: Oracle, tmp_path: Path
) -> None:
    """AngelSlim's heads say that their LM head is tied, which it is not.

    Files may have the layer as `layers.0`, and ids in any order.
    """
    order = torch.randperm(N_DRAFT, generator=torch.Generator().manual_seed(1))
    ids = (oracle.tensors["d2t"] + torch.arange(N_DRAFT))[order]
    renamed = {
        name: None for name in oracle.tensors if name.startswith("midlayer.")
    } | {
        name.replace("midlayer.", "layers.0."): value
        for name, value in oracle.tensors.items()
        if name.startswith("midlayer.")
    }  # fmt: skip
    changes = {
        "d2t": ids - torch.arange(N_DRAFT),
        "lm_head.weight": oracle.tensors["lm_head.weight"][order],
        "embed_tokens.weight": oracle.embedding.weight.detach(),
    }
    published = {"architectures": ["Eagle3LlamaForCausalLM"], "tie_word_embeddings": True}
    folder = oracle.write(tmp_path / "head", published, **renamed, **changes)
    export(ExportConfig(str(toy.folder), tmp_path / "b", head=folder))
    entry = read_manifest(tmp_path / "b").head
    assert entry is not None
    read = states(toy, TOKENS)[:-1]
    with torch.inference_mode():
        expected, _ = oracle(TOKENS[1:], torch.tensor(read) @ oracle.tensors["fc.weight"].T)
    features = np.concatenate([read, np.zeros((len(read), CONFIG["hidden_size"]))], axis=1)
    model = open_model(tmp_path / "b", entry.head, 1)
    sequence, chain = TokenSequence(model, CONTEXT), TokenTree.chain(TOKENS[1:])
    rows = sequence.run(
        Pass(sequence, chain, range(len(read)), features=features.astype(np.float32))
    )
    assert compare_logits(rows.logits, expected)["kl_nats"] < 2e-3
    release_model(model)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", ["eagle", "auto"])
def test_text_stays_that_of_plain_decoding(
    toy: Toy, oracle: Oracle, tmp_path: Path, method: str, temperature: float
) -> None:
    bundle = tmp_path / "b"
    head = oracle.write(tmp_path / "head")
    export(ExportConfig(str(toy.folder), bundle, quantization="int8", head=head))
    with load(bundle, EngineOptions(threads=1)) as engine:
        for seed, prompt in enumerate(["A", "ABCABCDEFABCABCDEF"]):
            request = GenerationConfig(
                max_new_tokens=24, ignore_eos=True, seed=seed,
                sampling=SamplingConfig(temperature=temperature),
            )  # fmt: skip
            plain = engine.generate(prompt, dataclasses.replace(request, method="plain"))
            found = engine.generate(prompt, dataclasses.replace(request, method=method))
            assert found.token_ids == plain.token_ids
            assert not found.stats.failed_drafters
            assert method == "auto" or found.stats.n_proposed


@pytest.mark.parametrize(
    ("config", "tensors", "expected"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, {}, "no draft head that is read, but Llama"),
        ({"hidden_size": 44}, {}, "of another model: its hidden_size is 44, the model's 40"),
        ({"vocab_size": 96}, {}, "of another model: its vocab_size is 96, the model's 97"),
        ({"target_hidden_size": 80}, {}, "reads states of 80 numbers"),
        ({"num_hidden_layers": 2}, {}, "this has 2 layers"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 1, 0]}}, {}, "three rising"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 9]}}, {}, "9"),
        ({"fc_norm": True}, {}, "fc_norm is True, only False is supported"),
        ({"norm_before_residual": True}, {}, "norm_before_residual is True, only False"),
        ({"norm_before_fc": True}, {}, "norm_before_fc is True, only False"),
        ({"norm_output": False}, {}, "norm_output is False, only True"),
        ({"transformer_layer_config": {"hidden_size": 40}}, {}, "only its absence is supported"),
        ({}, {"d2t": lambda t: t + 60}, r"d2t: head id \d+ is no token, expected 0 to 96"),
        ({}, {"d2t": lambda t: -torch.arange(len(t))}, "d2t: .* rising ids without repeats"),
        ({}, {"d2t": lambda t: t[:-1]}, r"d2t is I64\[40\], expected I64\[41\]"),
        ({}, {"t2d": lambda t: ~t}, "d2t and t2d name different tokens"),
        ({}, {"fc.weight": lambda t: None}, "fc.weight is nothing, expected"),
        ({}, {"fc.weight": lambda t: t[:, :-1]}, r"fc.weight is F32\[40, 119\], expected"),
        ({}, {"fc.weight": lambda t: t * float("nan")}, "fc.weight holds numbers that are not"),
        ({}, {"lm_head.weight": lambda t: None}, "has no matrix lm_head.weight"),
        ({}, {"norm.bias": lambda t: torch.ones(40)}, "nothing reads the tensor norm.bias"),
        (
            {},
            {"embed_tokens.weight": lambda t: torch.randn(97, 40)},
            "of another model: its embeddings differ",
        ),
    ],
)  # fmt: skip
def test_heads_of_other_models_and_damaged_ones_are_refused(
    toy: Toy,
    oracle: Oracle,
    tmp_path: Path,
    config: dict[str, Any],
    tensors: dict[str, Callable[[Any], Any]],
    expected: str,
) -> None:
    changed = {name: change(oracle.tensors.get(name)) for name, change in tensors.items()}
    folder = oracle.write(tmp_path / "head", config, **changed)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=expected):
        export(ExportConfig(str(toy.folder), tmp_path / "b", head=folder))
    assert not (tmp_path / "b").exists()
