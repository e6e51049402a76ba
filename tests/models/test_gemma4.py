"""Gemma 4's text models: inputs of layers, heads of two sizes, shared keys.

The oracle is a plain decoder here, since transformers 4 has no such models. What transformers 5.24
makes of the same weights is kept in a file, and the oracle has to give that.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from family_parity import SIZES, TOKENS, Logits, Tensors, Toy, WholePassParity, torch
from safetensors.torch import save_file

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.models.config import LayerConfig, RopeScaling
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families import gemma4
from edgedec.models.fields import Fields
from tests.parity.toy_parity import TOKENIZER

pytestmark = pytest.mark.parity

WINDOW, N_SHARED, SIZE, FULL_SIZE, LOCAL = 6, 2, 12, 20, "sliding_attention"
FULL = "full_attention"
KINDS = (LOCAL, LOCAL, LOCAL, FULL, LOCAL, FULL)
N_LAYERS = len(KINDS)
KV_LAYERS = (0, 1, 2, 3, 2, 3)
"""Whose keys and values each layer reads."""
N_STILL = FULL_SIZE // 2 - 2
EXPECTED = Path(__file__).with_name("gemma4_logits.npy")
"""Logits of transformers 5.24 for `TOKENS` and the weights of `draw_weights`."""


def shapes(sizes: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Returns every weight as publishers name it."""
    hidden, inner, heads = sizes["hidden_size"], sizes["intermediate_size"], 4
    found = {
        "model.embed_tokens.weight": (sizes["vocab_size"], hidden),
        "model.embed_tokens_per_layer.weight": (97, N_LAYERS * 32),
        "model.per_layer_model_projection.weight": (N_LAYERS * 32, hidden),
        "model.per_layer_projection_norm.weight": (32,),
        "model.norm.weight": (hidden,),
    }
    for i, kind in enumerate(KINDS):
        d, wide = (
            SIZE if kind == LOCAL else FULL_SIZE,
            inner * (2 if i >= N_LAYERS - N_SHARED else 1),
        )
        own = {
            "self_attn.q_proj": (heads * d, hidden), "self_attn.o_proj": (hidden, heads * d),
            "self_attn.q_norm": (d,), "mlp.gate_proj": (wide, hidden),
            "mlp.up_proj": (wide, hidden), "mlp.down_proj": (hidden, wide),
            "per_layer_input_gate": (32, hidden), "per_layer_projection": (hidden, 32),
        }  # fmt: skip
        if KV_LAYERS[i] == i:
            own |= {f"self_attn.{part}_proj": (2 * d, hidden) for part in "kv"}
            own["self_attn.k_norm"] = (d,)
        norms = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm")
        norms += ("post_feedforward_layernorm", "post_per_layer_input_norm")
        own |= dict.fromkeys(norms, (hidden,))
        found |= {f"model.layers.{i}.{name}.weight": shape for name, shape in own.items()}
        found[f"model.layers.{i}.layer_scalar"] = (1,)
    return found


def draw_weights(sizes: dict[str, Any]) -> dict[str, Any]:
    """Returns random weights, the same wherever they are drawn."""
    rng, found = np.random.RandomState(3), {}
    for name, shape in sorted(shapes(sizes).items()):
        mean, std = (1.0, 0.3) if "norm" in name else (0.0, 0.11)
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            mean, std = 0.5, 0.1
        if name.endswith("layer_scalar"):
            mean, std = 0.9, 0.05
        values = mean + std * rng.standard_normal(shape)
        found[name] = torch.tensor(values.astype(np.float32))
    return found


def norm(x: Any, weight: Any = 1.0) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def rotated(x: Any, theta: float, n_still: int) -> Any:
    """Returns heads [T, H, d] turned by their positions, all but the last pairs of channels."""
    d = x.shape[-1]
    inverse = theta ** -(torch.arange(0, d, 2, dtype=torch.float64) / d)
    inverse[d // 2 - n_still :] = 0
    angles = torch.outer(torch.arange(len(x), dtype=torch.float64), inverse).float()[:, None]
    low, high = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


class Oracle:
    """The model, as `transformers` would call it."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self._weights = weights

    def state_dict(self) -> dict[str, Any]:
        return self._weights

    def __call__(self, ids: Any) -> Any:
        w, (tokens,) = self._weights, ids
        x = w["model.embed_tokens.weight"][tokens] * 40**0.5
        given = self._layer_inputs(tokens, x)
        kept: dict[int, tuple[Any, Any]] = {}
        for i in range(N_LAYERS):
            x = self._layer(i, x, given[:, i], kept)
        logits = norm(x, w["model.norm.weight"]) @ w["model.embed_tokens.weight"].T
        return SimpleNamespace(logits=(30 * torch.tanh(logits / 30))[None])

    def _layer_inputs(self, tokens: Any, x: Any) -> Any:
        w = self._weights
        of_stream = (x @ w["model.per_layer_model_projection.weight"].T * 40**-0.5).view(
            -1, N_LAYERS, 32
        )
        of_stream = norm(of_stream, w["model.per_layer_projection_norm.weight"])
        table = w["model.embed_tokens_per_layer.weight"].view(-1, N_LAYERS, 32)
        return (of_stream + table[tokens] * 32**0.5) * 2**-0.5

    def _layer(self, i: int, x: Any, given: Any, kept: dict[int, tuple[Any, Any]]) -> Any:
        def w(name: str) -> Any:
            return self._weights[f"model.layers.{i}.{name}.weight"]

        gelu = torch.nn.GELU(approximate="tanh")
        h = norm(x, w("input_layernorm"))
        x = x + norm(self._attention(i, h, kept), w("post_attention_layernorm"))
        h = norm(x, w("pre_feedforward_layernorm"))
        h = (gelu(h @ w("mlp.gate_proj").T) * (h @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T
        x = x + norm(h, w("post_feedforward_layernorm"))
        h = gelu(x @ w("per_layer_input_gate").T) * given
        x = x + norm(h @ w("per_layer_projection").T, w("post_per_layer_input_norm"))
        return x * self._weights[f"model.layers.{i}.layer_scalar"]

    def _attention(self, i: int, h: Any, kept: dict[int, tuple[Any, Any]]) -> Any:
        is_local = KINDS[i] == LOCAL
        d, theta, n_still = (SIZE, 1e4, 0) if is_local else (FULL_SIZE, 1e6, N_STILL)

        def heads(part: str) -> Any:
            matrix = self._weights[f"model.layers.{i}.self_attn.{part}_proj.weight"]
            return (h @ matrix.T).view(len(h), -1, d)

        def of(part: str) -> Any:
            return self._weights[f"model.layers.{i}.self_attn.{part}.weight"]

        q = rotated(norm(heads("q"), of("q_norm")), theta, n_still)
        if KV_LAYERS[i] == i:
            kept[i] = rotated(norm(heads("k"), of("k_norm")), theta, n_still), norm(heads("v"))
        k, v = (rows.repeat_interleave(2, dim=1) for rows in kept[KV_LAYERS[i]])
        scores = torch.einsum("qhd,khd->hqk", q, k)
        behind = torch.arange(len(h))[:, None] - torch.arange(len(h))
        hidden = (behind < 0) | ((behind >= WINDOW) if is_local else False)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        return torch.einsum("hqk,khd->qhd", weights, v).reshape(len(h), -1) @ of("o_proj").T


class TestParity(WholePassParity):
    SIZES = {**SIZES, "tie_word_embeddings": True, "num_hidden_layers": N_LAYERS, "rope_theta": 1e6}
    EXPECTED = {"family": "gemma4", "head_size": FULL_SIZE, "has_value_norm": True}
    ARCHITECTURE = "gemma4"
    METADATA = {
        "attention.sliding_window": WINDOW, "attention.shared_kv_layers": N_SHARED,
        "attention.key_length_swa": SIZE, "attention.value_length_swa": SIZE,
        "rope.dimension_count": FULL_SIZE, "rope.dimension_count_swa": SIZE,
        "embedding_length_per_layer_input": 32, "final_logit_softcapping": 30.0,
        "rope.freq_base_swa": 1e4,
    }  # fmt: skip
    REFUSED = {
        "attention_bias": True, "attention_k_eq_v": True, "enable_moe_block": True,
        "hidden_activation": "gelu", "use_bidirectional_attention": "all",
    }  # fmt: skip

    @classmethod
    def draw(cls, folder: Path) -> Toy:
        weights = draw_weights(cls.SIZES)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(cls.fields()))
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        return Toy(Oracle(weights), folder)

    @classmethod
    def fields(cls) -> dict[str, Any]:
        """Returns what is in a ``config.json``."""
        return {
            **{key: value for key, value in cls.SIZES.items() if key != "rope_theta"},
            "model_type": "gemma4_text", "hidden_activation": "gelu_pytorch_tanh",
            "layer_types": list(KINDS), "sliding_window": WINDOW, "global_head_dim": FULL_SIZE,
            "num_kv_shared_layers": N_SHARED, "use_double_wide_mlp": True,
            "vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 32,
            "final_logit_softcapping": 30.0, "attention_bias": False, "enable_moe_block": False,
            "rope_parameters": {
                LOCAL: {"rope_type": "default", "rope_theta": 1e4},
                FULL: {
                    "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6,
                },
            },
        }  # fmt: skip

    def test_ort(self, toy: Toy, tmp_path: Path) -> None:
        """Heads of two sizes are of neither that its operator takes."""

    def write_header(self, writer: Any) -> None:
        super().write_header(writer)
        writer.add_feed_forward_length([56] * 4 + [112] * 2)
        writer.add_key_length(FULL_SIZE)
        writer.add_value_length(FULL_SIZE)
        writer.add_array("gemma4.attention.sliding_window_pattern", [k == LOCAL for k in KINDS])
        still = np.array([1.0] * 2 + [1e30] * N_STILL, np.float32)
        writer.add_tensor("rope_freqs.weight", still)

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        yield from super().gguf_tensors(f"{name}.weight" if "scalar" in name else name, values)


def test_the_oracle_gives_what_transformers_gives() -> None:
    oracle = Oracle(draw_weights(TestParity.SIZES))
    logits = oracle(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(logits, np.load(EXPECTED), atol=2e-5)


def test_layers_differ_by_kind() -> None:
    config = gemma4.read_hf(Fields(TestParity.fields(), "config.json", CheckpointError))
    assert config.layers[0] == LayerConfig(
        56, 1e4, window=WINDOW, has_rope_scaling=False, head_size=SIZE
    )
    assert config.layers[5] == LayerConfig(112, 1e6, kv_layer=3)
    assert [config.kv_layers, config.windowed_layers] == [(0, 1, 2, 3), (0, 1, 2)]
    assert config.rope_scaling == RopeScaling("factors", factors=(1.0,) * 2 + (1e30,) * N_STILL)


def test_head_sizes_as_transformers_5_saves_them(tmp_path: Path) -> None:
    toy = TestParity.draw(tmp_path)
    fields = TestParity.fields()
    del fields["global_head_dim"]
    fields["per_layer_config"] = {str(i): {"head_dim": FULL_SIZE} for i in (3, 5)}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert open_checkpoint(str(toy.folder)).config.layers[0].head_size == SIZE
    for own, text in (
        ({"3": {"head_dim": 20}, "5": {"head_dim": 24}}, r"heads of \[12, 20, 24\], only"),
        ({"0": {"head_dim": 20}}, r"heads of \[12, 20\], only"),
        ({"3": {"num_key_value_heads": 1}}, "num_key_value_heads is 1, only 2 is supported"),
    ):
        changed = {**fields, "per_layer_config": own}
        with pytest.raises(UnsupportedModelError, match=text):
            gemma4.read_hf(Fields(changed, "config.json", CheckpointError))
