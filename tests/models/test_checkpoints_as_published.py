"""Directories as people publish them, against transformers reading the same files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_parity import SIZES, TOKENS, transformers

from edgedec.export.checkpoints import class_sizes
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.fields import Fields
from edgedec.models.reference import ReferenceModel
from tests.parity.toy_parity import TOKENIZER

torch = pytest.importorskip("torch", reason="needs the dev extra")
safetensors = pytest.importorskip("safetensors.torch", reason="needs the dev extra")
pytestmark = pytest.mark.parity

EMBEDDING = "model.embed_tokens.weight"
Edit = Callable[[dict[str, Any]], Any]


def save(folder: Path, family: str, dtype: str = "float32", **fields: Any) -> None:
    """Writes a tiny model whose norms and biases do something."""
    torch.manual_seed(4)
    config = transformers.AutoConfig.for_model(family, **{**SIZES, **fields})
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))


def edit_config(folder: Path, edit: Edit) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config))


def edit_weights(folder: Path, edit: Edit) -> None:
    path = folder / "model.safetensors"
    weights = edit(safetensors.load_file(path))
    safetensors.save_file({k: v.contiguous() for k, v in weights.items()}, path, {"format": "pt"})


def theirs(folder: Path, **options: Any) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", **options
    )
    with torch.inference_mode():
        return model.eval()(torch.tensor([TOKENS])).logits[0].numpy()


def error(folder: Path, expected: Any) -> float:
    """Returns how far our logits are, over the spread of theirs."""
    ours = ReferenceModel(open_checkpoint(str(folder))).forward(TOKENS).logits
    return float(np.abs(ours - expected).max() / expected.std())


OF_4 = {"head_dim": 12, "num_key_value_heads": 4}
LEFT_OUT = {
    "llama rope_theta": ("llama", {}, ["rope_theta"]),
    "llama rms_norm_eps": ("llama", {}, ["rms_norm_eps"]),
    "llama num_key_value_heads": ("llama", {"num_key_value_heads": 4}, ["num_key_value_heads"]),
    "llama head_dim": ("llama", {"head_dim": 10}, ["head_dim"]),
    "llama tie_word_embeddings": ("llama", {}, ["tie_word_embeddings"]),
    "mistral num_key_value_heads": (
        "mistral",
        {"num_attention_heads": 8, "num_key_value_heads": 8},
        ["num_key_value_heads"],
    ),
    "qwen2 num_key_value_heads": (
        "qwen2",
        {"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 2, "hidden_size": 64},
        ["num_key_value_heads"],
    ),
    "qwen3 head_dim": ("qwen3", {"head_dim": 128}, ["head_dim"]),
    "phi3 rms_norm_eps": ("phi3", {"head_dim": 10}, ["rms_norm_eps"]),
    "olmo2 rms_norm_eps": ("olmo2", {"head_dim": 10}, ["rms_norm_eps"]),
    "olmo3 rms_norm_eps": ("olmo3", {"head_dim": 10, "sliding_window": 5}, ["rms_norm_eps"]),
    "olmo3 layer_types": ("olmo3", {"head_dim": 10, "sliding_window": 5}, ["layer_types"]),
    "mixtral rms_norm_eps and rope_theta": (
        "mixtral",
        {"rope_theta": 1e6},
        ["rms_norm_eps", "rope_theta"],
    ),
    "ernie4_5 numbers": (
        "ernie4_5",
        {"head_dim": 128, "rope_theta": 5e5, "rms_norm_eps": 1e-5},
        ["head_dim", "rope_theta", "rms_norm_eps", "num_key_value_heads"],
    ),
    "mixtral experts": (
        "mixtral",
        {"num_attention_heads": 8, "num_key_value_heads": 8},
        ["num_local_experts", "num_experts_per_tok", "num_key_value_heads"],
    ),
    "smollm3 rope_theta": ("smollm3", {"head_dim": 10, "rope_theta": 2e6}, ["rope_theta"]),
    "smollm3 num_key_value_heads": (
        "smollm3",
        {"head_dim": 10, "num_key_value_heads": 4},
        ["num_key_value_heads"],
    ),
    "smollm3 windows": (
        "smollm3",
        {"head_dim": 10, "use_sliding_window": True, "sliding_window": 5},
        ["layer_types"],
    ),
    "smollm3 windows and no interval": (
        "smollm3",
        {"head_dim": 10, "use_sliding_window": True, "sliding_window": 5},
        ["layer_types", "no_rope_layer_interval", "no_rope_layers"],
    ),
    "gemma2 caps": ("gemma2", {}, ["attn_logit_softcapping", "final_logit_softcapping"]),
    "gemma2 num_key_value_heads and head_dim": (
        "gemma2",
        {"head_dim": 256, "num_key_value_heads": 4},
        ["num_key_value_heads", "head_dim"],
    ),
    "gemma2 query_pre_attn_scalar": ("gemma2", {}, ["query_pre_attn_scalar"]),
    "gemma2 layer_types": ("gemma2", {"sliding_window": 6}, ["layer_types"]),
    "gemma3 rope_theta": ("gemma3_text", {"rope_theta": 1e6}, ["rope_theta"]),
    "gemma3 local base": ("gemma3_text", {}, ["rope_local_base_freq"]),
    "gemma3 head_dim": ("gemma3_text", {"head_dim": 256}, ["head_dim"]),
    "gemma3 layer_types": (
        "gemma3_text",
        {"num_hidden_layers": 7, "sliding_window": 6},
        ["layer_types", "sliding_window_pattern"],
    ),
    "granite multipliers": (
        "granite",
        {"head_dim": 10},
        ["embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"],
    ),
    "granitemoe experts": (
        "granitemoe",
        {"head_dim": 10},
        ["num_local_experts", "num_experts_per_tok"],
    ),
    "qwen3_moe experts": (
        "qwen3_moe",
        {"moe_intermediate_size": 16, "num_experts": 128},
        ["num_experts", "num_experts_per_tok"],
    ),
    "qwen3_moe norm_topk_prob": (
        "qwen3_moe",
        {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2},
        ["norm_topk_prob"],
    ),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_keys_that_are_left_out(tmp_path: Path, name: str) -> None:
    family, fields, keys = LEFT_OUT[name]
    save(tmp_path, family, **fields)
    edit_config(tmp_path, lambda config: [config.pop(key, None) for key in keys])
    assert error(tmp_path, theirs(tmp_path)) < 2e-3


@pytest.mark.parametrize("family", class_sizes._SIZES)
def test_sizes_that_are_left_out_are_those_of_the_class(family: str) -> None:
    if family not in transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES:
        pytest.skip("this transformers has no such class")
    theirs = transformers.AutoConfig.for_model(family)
    ours = class_sizes.with_class_sizes(Fields({"model_type": family}, "test", CheckpointError))
    assert {key: getattr(theirs, key) for key in class_sizes._KEYS} == {
        key: ours.integer(key) for key in class_sizes._KEYS
    }


@pytest.mark.parametrize("family", ["llama", "qwen3", "ernie4_5"])
def test_sizes_that_are_left_out(tmp_path: Path, family: str) -> None:
    heads = transformers.AutoConfig.for_model(family).num_attention_heads
    save(tmp_path, family, num_attention_heads=heads, num_key_value_heads=2, head_dim=4)
    edit_config(tmp_path, lambda config: config.pop("num_attention_heads"))
    assert error(tmp_path, theirs(tmp_path)) < 2e-3


WINDOWS = {
    "mistral, absent": ("mistral", {}, "absent", 4096),
    "mistral, null": ("mistral", {"sliding_window": None}, None, 0),
    "mistral, 6": ("mistral", {"sliding_window": 6}, 6, 6),
    "phi3, absent": ("phi3", {}, "absent", 0),
    "gemma2, absent": ("gemma2", {}, "absent", 4096),
    "gemma2, null": ("gemma2", {}, None, 0),
    "gemma3, absent": ("gemma3_text", {}, "absent", 4096),
    "qwen2, absent": (
        "qwen2",
        {"use_sliding_window": True, "max_window_layers": 1},
        "absent",
        4096,
    ),
    "qwen2, null": ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}, None, 0),
    "qwen2, not used": ("qwen2", {"max_window_layers": 1}, "absent", 0),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_that_are_absent_or_null(tmp_path: Path, name: str) -> None:
    family, fields, stated, expected = WINDOWS[name]
    head = {} if family.startswith("gemma") else {"head_dim": 10}
    save(tmp_path, family, **{**head, **fields, "max_position_embeddings": 8192})

    def edit(config: dict[str, Any]) -> None:
        del config["sliding_window"]
        config.pop("layer_types", None)
        if stated != "absent":
            config["sliding_window"] = stated

    edit_config(tmp_path, edit)
    config = open_checkpoint(str(tmp_path)).config
    assert max((config.layer(i).window for i in range(config.n_layers)), default=0) == expected


def test_windows_by_layer_and_no_size(tmp_path: Path) -> None:
    windows = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}
    save(tmp_path, "qwen2", head_dim=10, **windows)
    edit_config(tmp_path, lambda config: config.pop("sliding_window"))
    assert error(tmp_path, theirs(tmp_path)) < 2e-3


def test_no_rotation_is_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path, "granitemoe", head_dim=10, num_local_experts=4, num_experts_per_tok=2)
    edit_config(tmp_path, lambda config: config.update(position_embedding_type=None))
    with pytest.raises(UnsupportedModelError, match="position_embedding_type is None, only 'rope'"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("key", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_null_is_no_cap(tmp_path: Path, key: str) -> None:
    save(tmp_path, "gemma2", **{key: None})
    assert error(tmp_path, theirs(tmp_path)) < 2e-3


ROPE = {
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn of old files": {"type": "yarn", "factor": 2.5, "original_max_position_embeddings": 32},
    "yarn without the original": {"rope_type": "yarn", "factor": 4.0},
    "yarn with betas": {
        "rope_type": "yarn",
        "factor": 8.0,
        "beta_fast": 4,
        "beta_slow": 0.5,
        "original_max_position_embeddings": 16,
    },
    "yarn with mscale": {
        "rope_type": "yarn",
        "factor": 8.0,
        "mscale": 0.7,
        "mscale_all_dim": 1.3,
        "original_max_position_embeddings": 16,
    },
    "yarn with a factor of attention": {
        "rope_type": "yarn",
        "factor": 8.0,
        "attention_factor": 1.5,
        "original_max_position_embeddings": 16,
    },
    "yarn, not truncated": {
        "rope_type": "yarn",
        "factor": 8.0,
        "truncate": False,
        "original_max_position_embeddings": 16,
    },
    "yarn of a factor of 1": {
        "rope_type": "yarn",
        "factor": 1.0,
        "original_max_position_embeddings": 64,
    },
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "dynamic of old files": {"type": "dynamic", "factor": 8.0},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "yarn with a null": {
        "rope_type": "yarn",
        "factor": 8.0,
        "truncate": None,
        "original_max_position_embeddings": 16,
    },
}


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("name", ROPE)
def test_rope_scaling(tmp_path: Path, family: str, name: str) -> None:
    save(tmp_path, family, head_dim=10)
    edit_config(tmp_path, lambda config: config.update(rope_scaling=ROPE[name]))
    assert error(tmp_path, theirs(tmp_path)) < 2e-3


def test_scaling_that_a_model_card_has_people_add(tmp_path: Path) -> None:
    """Both keys in one file: transformers 4 reads the added one alone, 5 lets it replace the other.

    The base of the rotation is not to be lost with it.
    """
    added = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    save(tmp_path, "qwen2", head_dim=10, rope_theta=3e5)
    edit_config(tmp_path, lambda config: config.update(rope_scaling=added))
    expected = theirs(tmp_path)
    rope = {"rope_type": "default", "rope_theta": 3e5}
    edit_config(tmp_path, lambda config: config.update(rope_parameters=rope))
    assert error(tmp_path, expected) < 2e-3
    edit_config(tmp_path, lambda config: config.pop("rope_theta"))
    with pytest.raises(CheckpointError, match=r"rope_scaling replaces .*rope_theta of 300000\.0"):
        open_checkpoint(str(tmp_path))
    edit_config(tmp_path, lambda config: config["rope_scaling"].update(rope_theta=3e5))
    assert error(tmp_path, expected) < 2e-3


def test_scaling_added_where_layers_rotate_in_two_ways(tmp_path: Path) -> None:
    """As transformers 5 reads it: the added key changes the layers without a window."""
    save(tmp_path, "gemma3_text", sliding_window=6)
    added = {"rope_type": "linear", "factor": 8.0}
    edit_config(tmp_path, lambda config: config.update(rope_scaling=added))
    expected = theirs(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    both = {
        "full_attention": {"rope_type": "default", "rope_theta": config.pop("rope_theta")},
        "sliding_attention": {
            "rope_type": "default", "rope_theta": config.pop("rope_local_base_freq"),
        },
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_parameters": both}))
    assert error(tmp_path, expected) < 2e-3


def test_a_cap_that_gemma_3_states_and_does_not_use(tmp_path: Path) -> None:
    save(tmp_path, "gemma3_text", attn_logit_softcapping=2.0)
    assert error(tmp_path, theirs(tmp_path)) < 2e-3


@pytest.mark.parametrize("family", ["phi3", "qwen3"])
def test_heads_of_no_size_are_refused(tmp_path: Path, family: str) -> None:
    save(tmp_path, family, head_dim=10)
    edit_config(tmp_path, lambda config: config.update(head_dim=0))
    with pytest.raises(CheckpointError, match="head_size is 0, expected a positive integer"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("infinite", [math.inf, {"__float__": "Infinity"}])
def test_infinity_as_transformers_4_and_5_write_it(tmp_path: Path, infinite: Any) -> None:
    mamba = {
        "mamba_n_heads": 8, "mamba_d_head": 10, "mamba_d_state": 16, "mamba_n_groups": 1,
        "num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 56,
        "layer_types": ["mamba", "attention"] * 2, "head_dim": 10,
    }  # fmt: skip
    save(tmp_path, "granitemoehybrid", **mamba)
    expected = theirs(tmp_path)
    edit_config(tmp_path, lambda config: config.update(time_step_limit=[0.0, infinite]))
    assert error(tmp_path, expected) < 2e-3
    edit_config(tmp_path, lambda config: config.update(rms_norm_eps=infinite))
    with pytest.raises(CheckpointError, match="rms_norm_eps is inf, expected a finite number"):
        open_checkpoint(str(tmp_path))


def test_longrope_by_its_own_factor(tmp_path: Path) -> None:
    factors = [1 + 0.3 * i for i in range(6)]
    scaling = {"rope_type": "longrope", "factor": 4.0, "short_factor": factors,
               "long_factor": [2 * one for one in factors]}  # fmt: skip
    save(tmp_path, "qwen3", head_dim=12)
    edit_config(tmp_path, lambda config: config.update(rope_scaling=scaling))
    assert error(tmp_path, theirs(tmp_path)) < 2e-3


def test_yarn_serves_what_it_stretches_to(tmp_path: Path) -> None:
    save(tmp_path, "qwen2", head_dim=10)
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    edit_config(tmp_path, lambda config: config.update(rope_scaling=scaling))
    assert open_checkpoint(str(tmp_path)).config.max_positions == 256


NAMES: dict[str, Edit] = {
    "no model.": lambda w: {k.removeprefix("model."): v for k, v in w.items()},
    "language_model.": lambda w: {f"language_model.{k}": v for k, v in w.items()},
    "model.language_model.": lambda w: {
        k.replace("model.", "model.language_model.", 1): v for k, v in w.items()
    },
    "_orig_mod.": lambda w: {f"_orig_mod.{k}": v for k, v in w.items()},
    "module.": lambda w: {f"module.{k}": v for k, v in w.items()},
}


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3"])
@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_names_of_weights(tmp_path: Path, family: str, is_tied: bool, name: str) -> None:
    save(tmp_path, family, tie_word_embeddings=is_tied)
    expected = theirs(tmp_path)
    edit_weights(tmp_path, NAMES[name])
    assert error(tmp_path, expected) < 2e-3


@pytest.mark.parametrize(
    "family", ["llama", "qwen3", "smollm3", "granite", "qwen3_moe", "olmo2", "gemma2"]
)
def test_biases_behind_the_heads(tmp_path: Path, family: str) -> None:
    more = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    head = {"head_dim": 12 if family.startswith("qwen3") else 10}
    save(tmp_path, family, attention_bias=True, **head, **more)
    assert error(tmp_path, theirs(tmp_path)) < 2e-3
    edit_weights(tmp_path, lambda w: {k: v for k, v in w.items() if "o_proj.bias" not in k})
    assert not open_checkpoint(str(tmp_path)).config.has_o_bias


def test_biases_of_mlps(tmp_path: Path) -> None:
    save(tmp_path, "llama", mlp_bias=True, attention_bias=True)
    assert open_checkpoint(str(tmp_path)).config.has_mlp_bias
    assert error(tmp_path, theirs(tmp_path)) < 2e-3


def test_swish_is_silu(tmp_path: Path) -> None:
    save(tmp_path, "llama", hidden_act="swish")
    assert error(tmp_path, theirs(tmp_path)) < 2e-3


def test_a_head_of_its_own_is_kept_though_a_tie_is_stated(tmp_path: Path) -> None:
    save(tmp_path, "llama", tie_word_embeddings=False)
    expected = theirs(tmp_path)
    edit_config(tmp_path, lambda config: config.update(tie_word_embeddings=True))
    assert error(tmp_path, expected) < 2e-3
    edit_weights(
        tmp_path, lambda w: {**w, "lm_head.weight": w["model.embed_tokens.weight"].clone()}
    )
    assert open_checkpoint(str(tmp_path)).config.is_head_tied


def test_float64(tmp_path: Path) -> None:
    save(tmp_path, "llama", dtype="float64")
    assert error(tmp_path, theirs(tmp_path)) < 2e-3


def test_a_stale_index_beside_a_whole_file(tmp_path: Path) -> None:
    save(tmp_path, "llama")
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert error(tmp_path, theirs(tmp_path)) < 2e-3


def as_transformers_5_writes(config: dict[str, Any]) -> None:
    """Renames what transformers 5.24 writes by other keys than 4."""
    if (n_experts := config.pop("num_experts", None)) is not None:
        config["num_local_experts"] = n_experts
    scaling = config.pop("rope_scaling", None) or {"rope_type": "default"}
    rope = {"rope_theta": config.pop("rope_theta"), **scaling}
    config["rope_parameters"] = rope
    if config["model_type"] == "olmo3":
        local = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
        config["rope_parameters"] = {"full_attention": rope, "sliding_attention": local}


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("qwen3_moe", {"moe_intermediate_size": 16, "num_experts": 5, "num_experts_per_tok": 2}),
        ("olmo3", {"head_dim": 10, "sliding_window": 5, "rope_theta": 3e5}),
        ("llama", {"rope_theta": 3e5}),
    ],
)
def test_configs_of_transformers_5(tmp_path: Path, family: str, fields: dict[str, Any]) -> None:
    save(tmp_path, family, **fields)
    expected = theirs(tmp_path)
    edit_config(tmp_path, as_transformers_5_writes)
    assert error(tmp_path, expected) < 2e-3


def test_pickled_weights_are_to_be_converted(tmp_path: Path) -> None:
    save(tmp_path, "llama")
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin, .*convert it"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("family", ["gemma3", "qwen2_vl", "llama4"])
def test_models_that_see_images_say_so(tmp_path: Path, family: str) -> None:
    save(tmp_path, "llama")
    text = json.loads((tmp_path / "config.json").read_text())
    outer = {"model_type": family, "text_config": text, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    with pytest.raises(UnsupportedModelError, match=r"text_config is there, .*sees images"):
        open_checkpoint(str(tmp_path))
