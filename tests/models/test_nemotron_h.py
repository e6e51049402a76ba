"""Nemotron-H: layers of Mamba-2, attention or an MLP, by a pattern.

The oracle is a plain decoder here, since transformers 4 has no such models. What transformers 5.24
makes of the same weights is kept in a file, and the oracle has to give that.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.quantising.calibration.norm_readers import norm_readers
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families import nemotron_h
from edgedec.models.fields import Fields
from tests.parity.family_parity import SIZES, TOKENS, Logits, Tensors, Toy, torch, unread_keys
from tests.parity.recurrent_parity import RecurrentParity
from tests.parity.toy_parity import TOKENIZER

pytestmark = pytest.mark.parity

PATTERN = "M-MM*-*M"
N_HEADS, N_GROUPS, HEAD, STATE, CONV = 4, 2, 20, 24, 4
INNER, KEYS = N_HEADS * HEAD, N_GROUPS * STATE
CHANNELS = INNER + 2 * KEYS
EXPECTED = Path(__file__).with_name("nemotron_h_logits.npy")
"""Logits of transformers 5.24 for `TOKENS` and the weights of `draw_weights`."""


def shapes(sizes: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Returns every weight as publishers name it."""
    hidden, inner, d = sizes["hidden_size"], sizes["intermediate_size"], sizes["head_dim"]
    of_kind: dict[str, dict[str, tuple[int, ...]]] = {
        "M": {
            "in_proj.weight": (INNER + CHANNELS + N_HEADS, hidden),
            "out_proj.weight": (hidden, INNER), "norm.weight": (INNER,),
            "conv1d.weight": (CHANNELS, 1, CONV), "conv1d.bias": (CHANNELS,),
            **dict.fromkeys(("A_log", "D", "dt_bias"), (N_HEADS,)),
        },
        "*": {
            "q_proj.weight": (4 * d, hidden), "k_proj.weight": (2 * d, hidden),
            "v_proj.weight": (2 * d, hidden), "o_proj.weight": (hidden, 4 * d),
        },
        "-": {"up_proj.weight": (inner, hidden), "down_proj.weight": (hidden, inner)},
    }  # fmt: skip
    vocabulary = (sizes["vocab_size"], hidden)
    found = {"backbone.embeddings.weight": vocabulary, "backbone.norm_f.weight": (hidden,)}
    found["lm_head.weight"] = vocabulary
    for i, kind in enumerate(PATTERN):
        found[f"backbone.layers.{i}.norm.weight"] = (hidden,)
        own = of_kind[kind].items()
        found |= {f"backbone.layers.{i}.mixer.{name}": shape for name, shape in own}
    return found


def draw_weights(sizes: dict[str, Any]) -> dict[str, Any]:
    """Returns random weights, the same wherever they are drawn."""
    rng, found = np.random.RandomState(3), {}
    for name, shape in sorted(shapes(sizes).items()):
        mean, std = (1.0, 0.3) if "norm" in name else (0.0, 0.11)
        found[name] = torch.tensor((mean + std * rng.standard_normal(shape)).astype(np.float32))
    return found


def norm(x: Any, weight: Any, n_groups: int = 1) -> Any:
    groups = x.view(len(x), n_groups, -1)
    groups = groups * torch.rsqrt(groups.pow(2).mean(-1, keepdim=True) + 1e-6)
    return groups.view(len(x), -1) * weight


class Oracle:
    """The model, as `transformers` would call it."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self._weights = weights

    def state_dict(self) -> dict[str, Any]:
        return self._weights

    def __call__(self, ids: Any) -> Any:
        w, (tokens,) = self._weights, ids
        x = w["backbone.embeddings.weight"][tokens]
        mixers = {"M": self._mamba, "*": self._attention, "-": self._mlp}
        for i, kind in enumerate(PATTERN):
            stem = f"backbone.layers.{i}"
            own = {
                name.removeprefix(f"{stem}.mixer."): values
                for name, values in w.items()
                if name.startswith(f"{stem}.mixer.")
            }
            x = x + mixers[kind](own, norm(x, w[f"{stem}.norm.weight"]))
        logits = norm(x, w["backbone.norm_f.weight"]) @ w["lm_head.weight"].T
        return SimpleNamespace(logits=logits[None])

    def _mamba(self, w: dict[str, Any], h: Any) -> Any:
        z, channels, step = (h @ w["in_proj.weight"].T).split([INNER, CHANNELS, N_HEADS], dim=1)
        padded = torch.cat([torch.zeros(CONV - 1, CHANNELS), channels])
        windows = padded.unfold(0, CONV, 1)  # [T, C, K]
        channels = (windows * w["conv1d.weight"][:, 0]).sum(-1) + w["conv1d.bias"]
        values, keys, queries = torch.nn.functional.silu(channels).split([INNER, KEYS, KEYS], dim=1)
        values = values.view(-1, N_HEADS, HEAD)
        keys, queries = (
            part.view(-1, N_GROUPS, STATE).repeat_interleave(N_HEADS // N_GROUPS, dim=1)
            for part in (keys, queries)
        )
        step = torch.nn.functional.softplus(step + w["dt_bias"])[:, :, None, None]
        state, rows = torch.zeros(N_HEADS, HEAD, STATE), []
        for t in range(len(h)):
            added = torch.einsum("hp,hn->hpn", values[t], keys[t])
            state = state * torch.exp(-w["A_log"].exp()[:, None, None] * step[t]) + added * step[t]
            read = torch.einsum("hpn,hn->hp", state, queries[t])
            rows.append((read + w["D"][:, None] * values[t]).reshape(-1))
        gated = torch.stack(rows) * torch.nn.functional.silu(z)
        return norm(gated, w["norm.weight"], N_GROUPS) @ w["out_proj.weight"].T

    def _attention(self, w: dict[str, Any], h: Any) -> Any:
        d = len(w["q_proj.weight"]) // 4
        q, k, v = ((h @ w[f"{part}_proj.weight"].T).view(len(h), -1, d) for part in "qkv")
        k, v = (rows.repeat_interleave(2, dim=1) for rows in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * d**-0.5
        hidden = torch.ones(len(h), len(h), dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        heads = torch.einsum("hqk,khd->qhd", weights, v).reshape(len(h), -1)
        return heads @ w["o_proj.weight"].T

    def _mlp(self, w: dict[str, Any], h: Any) -> Any:
        return (h @ w["up_proj.weight"].T).relu().square() @ w["down_proj.weight"].T


def published(sizes: dict[str, Any]) -> dict[str, Any]:
    """Returns what is in a ``config.json``."""
    own = {key: value for key, value in sizes.items() if key != "rms_norm_eps"}
    return {
        **own, "model_type": "nemotron_h", "layer_norm_epsilon": sizes["rms_norm_eps"],
        "num_hidden_layers": len(PATTERN), "hybrid_override_pattern": PATTERN,
        "mamba_num_heads": N_HEADS, "mamba_head_dim": HEAD, "n_groups": N_GROUPS,
        "ssm_state_size": STATE, "conv_kernel": CONV, "use_conv_bias": True, "use_bias": False,
        "mamba_proj_bias": False, "mamba_hidden_act": "silu", "mlp_hidden_act": "relu2",
        "attention_bias": False, "mlp_bias": False, "time_step_limit": [0.0, float("inf")],
        "time_step_min": 0.0, "time_step_max": 0.1, "time_step_floor": 1e-4, "chunk_size": 8,
        "expand": 2, "sliding_window": None, "residual_in_fp32": False,
    }  # fmt: skip


class TestParity(RecurrentParity):
    SIZES: ClassVar[dict[str, Any]] = {**SIZES, "num_hidden_layers": len(PATTERN)}
    EXPECTED: ClassVar[dict[str, Any]] = {
        "family": "nemotron_h", "recurrent_layers": (0, 2, 3, 7), "kv_layers": (4, 6),
        "has_squared_relu": True, "intermediate_size": 56,
    }  # fmt: skip
    REFUSED: ClassVar[dict[str, Any]] = {
        "attention_bias": True, "mlp_bias": True, "mamba_proj_bias": True,
        "mamba_hidden_act": "gelu", "mlp_hidden_act": "silu", "sliding_window": 8,
        "time_step_limit": [0.001, 0.1],
    }  # fmt: skip
    ARCHITECTURE = "nemotron_h"

    @classmethod
    def draw(cls, folder: Path) -> Toy:
        weights = draw_weights(cls.SIZES)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(published(cls.SIZES)))
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        return Toy(Oracle(weights), folder)

    def write_header(self, writer: Any) -> None:
        super().write_header(writer)
        writer.add_feed_forward_length([56 * (kind == "-") for kind in PATTERN])
        writer.add_head_count_kv([2 * (kind == "*") for kind in PATTERN])
        writer.add_layer_norm_eps(self.SIZES["rms_norm_eps"])
        writer.add_rope_scaling_finetuned(False)
        writer.add_ssm_conv_kernel(CONV)
        writer.add_ssm_state_size(STATE)
        writer.add_ssm_group_count(N_GROUPS)
        writer.add_ssm_time_step_rank(N_HEADS)
        writer.add_ssm_inner_size(INNER)

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        """Source: ggml-org/llama.cpp ``conversion/nemotron.py``, ``conversion/mamba.py`` (MIT)."""
        if name.endswith("A_log"):
            values = -np.exp(values)
        if name.endswith(("A_log", "mixer.D")):
            values = values[:, np.newaxis]
        if name.endswith("mixer.norm.weight"):
            values = values.reshape(N_GROUPS, -1)
        values = values.squeeze(1) if name.endswith("conv1d.weight") else values
        yield from super().gguf_tensors(name.replace("dt_bias", "dt_proj.bias"), values)


def test_the_oracle_gives_what_transformers_gives() -> None:
    logits = Oracle(draw_weights(TestParity.SIZES))(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(logits, np.load(EXPECTED), atol=2e-5)


def test_a_directory_as_transformers_5_saves_it(tmp_path: Path) -> None:
    """A list of kinds in place of the pattern, infinity as a table, names with ``model.``."""
    toy = TestParity.draw(tmp_path)
    expected = open_checkpoint(str(toy.folder)).config
    fields = published(TestParity.SIZES)
    kinds = {"M": "linear_attention", "*": "full_attention", "-": "mlp"}
    fields["layers_block_type"] = [kinds[kind] for kind in fields.pop("hybrid_override_pattern")]
    fields["time_step_limit"] = [0.0, {"__float__": "Infinity"}]
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert open_checkpoint(str(tmp_path)).config == expected
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {name.replace("backbone.", "model."): values for name, values in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    assert open_checkpoint(str(tmp_path)).config == expected


def test_every_published_key_is_read_or_changes_nothing() -> None:
    """Those left are of tokens, of training, or say how the same numbers are computed."""
    assert unread_keys(nemotron_h.read_hf, published(SIZES)) == {
        "model_type", "bos_token_id", "eos_token_id", "pad_token_id", "num_hidden_layers",
        "time_step_min", "time_step_max", "time_step_floor", "chunk_size", "expand",
        "residual_in_fp32",
    }  # fmt: skip


def read(**changes: Any) -> Any:
    fields = {**published(TestParity.SIZES), **changes}
    return nemotron_h.read_hf(Fields(fields, "config.json", CheckpointError))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hybrid_override_pattern": "MEM*"}, "hybrid_override_pattern has a mixture of experts"),
        ({"layers_block_type": ["mamba", "moe"]}, "layers_block_type has a mixture of experts"),
        ({"hybrid_override_pattern": None}, "has a mixture of experts"),
        ({"hybrid_override_pattern": "M?*"}, r"has '\?', only M, .*supported"),
    ],
)
def test_layers_of_other_kinds_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        read(**changes)


def test_absent_keys_are_those_of_the_class_and_earlier_names_count() -> None:
    fields = {"vocab_size": 97, "hidden_size": 64, "hybrid_override_pattern": "M*-"}
    fields |= {"num_attention_heads": 32, "intermediate_size": 56}
    config = nemotron_h.read_hf(Fields(fields, "config.json", CheckpointError))
    own = config.recurrence
    assert (own.n_heads, own.head_size, own.n_groups, own.state_size) == (128, 64, 8, 128)
    assert (config.head_size, config.n_kv_heads, config.max_positions) == (128, 8, 4096)
    assert (config.rms_norm_eps, own.has_conv_bias, own.has_bias) == (1e-5, True, False)
    assert read(mamba_n_groups=4).recurrence.n_groups == 4
    assert read(num_key_value_heads=None).n_kv_heads == SIZES["num_attention_heads"]
    without_mamba = read(hybrid_override_pattern="*-")
    assert without_mamba.recurrent_layers == ()


def test_matrices_that_read_a_norm(tmp_path: Path) -> None:
    """So calibration may scale them."""
    toy = TestParity.draw(tmp_path)
    found = norm_readers(open_checkpoint(str(toy.folder)).config)
    mixer = tuple(f"layers.0.mixer.{part}_proj.weight" for part in ("x", "dt", "z"))
    assert found["layers.0.input_layernorm.weight"] == mixer
    assert found["layers.1.post_attention_layernorm.weight"] == ("layers.1.mlp.up_proj.weight",)
