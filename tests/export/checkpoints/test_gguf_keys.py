"""Keys of GGUF headers: each one of a family is used, or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.rope import rope_tables


def config_of(make_gguf: Any, family: str = "llama", **keys: Any) -> Any:
    metadata = {f"{family}.{key.replace('__', '.')}": value for key, value in keys.items()}
    return open_checkpoint(str(make_gguf(family, metadata=metadata))).config


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.causal", False), ("attention.clamp_kqv", 8.0),
        ("attention.max_alibi_bias", 8.0),
        ("use_parallel_residual", True), ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0), ("logit_scale", 0.5), ("residual_scale", 0.5),
        ("embedding_scale", 12.0), ("rope.scaling.attn_factor", 1.5), ("expert_gating_func", 2),
        ("expert_shared_count", 1), ("leading_dense_block_count", 1), ("nextn_predict_layers", 1),
        ("attention.temperature_scale", 0.1), ("rope.dimension_sections", [16, 16, 16]),
        ("attention.key_length_swa", 32), ("attention.q_lora_rank", 4),
        ("something.new", "yes"),
    ],
)  # fmt: skip
def test_what_no_recipe_reads_is_refused_by_name(make_gguf: Any, key: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"llama\.{key} is .* does not read"):
        config_of(make_gguf, **{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.causal", True), ("attention.clamp_kqv", 0.0), ("vocab_size", 300),
        ("tensor_data_layout", "Meta AI original pth"), ("rope.scaling.finetuned", False),
        ("rope.scaling.original_context_length", 512), ("logit_scale", 1.0), ("expert_count", 0),
        ("expert_used_count", 0), ("attention.sliding_window_pattern", 2),
        ("rope.scaling.attn_factor", 1.0), ("pooling_type", 0),
        ("rope.scaling.type", "none"), ("rope.scaling.type", "linear"),
        ("rope.scaling.type", "yarn"), ("rope.scaling.type", "longrope"),
    ],
)  # fmt: skip
def test_what_changes_nothing_is_passed_over(make_gguf: Any, key: str, value: Any) -> None:
    assert config_of(make_gguf, **{key: value}) == config_of(make_gguf)


def test_the_scale_of_attention(make_gguf: Any) -> None:
    assert config_of(make_gguf, **{"attention.scale": 0.5}).product_scale == 0.5


def test_lists_of_what_is_the_same_in_all_layers(make_gguf: Any) -> None:
    plain = config_of(make_gguf)
    lists = {"attention.head_count": [4, 4], "attention.head_count_kv": [2, 2]}
    assert config_of(make_gguf, **lists, feed_forward_length=[plain.intermediate_size] * 2) == plain
    with pytest.raises(UnsupportedModelError, match=r"head_count_kv differs from layer to layer"):
        config_of(make_gguf, **{"attention.head_count_kv": [2, 1]})
    with pytest.raises(CheckpointError, match=r"head_count_kv is a list of 3, expected a number"):
        config_of(make_gguf, **{"attention.head_count_kv": [2, 2, 2]})


@pytest.mark.parametrize("keys", [{}, {"rope.scaling.yarn_attn_factor": 1.1386294}])
def test_yarn_equals_that_of_transformers(make_gguf: Any, keys: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the dev extra")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = config_of(
        make_gguf,
        **{"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
           "rope.scaling.original_context_length": 128, **keys},
    )  # fmt: skip
    theirs = transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=4, head_dim=64, max_position_embeddings=512,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    )  # fmt: skip
    frequencies, scale = ROPE_INIT_FUNCTIONS["yarn"](theirs, "cpu")
    angles = np.outer(np.arange(64), frequencies.numpy())
    cos, sin = rope_tables(config, 64)
    np.testing.assert_allclose(cos, np.cos(angles) * scale, atol=2e-5)
    np.testing.assert_allclose(sin, np.sin(angles) * scale, atol=2e-5)


def test_another_factor_of_yarn_is_refused(make_gguf: Any) -> None:
    keys = {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.yarn_attn_factor": 1.5,
    }  # fmt: skip
    with pytest.raises(CheckpointError, match=r"yarn_attn_factor is 1\.5, expected 1 or 1\.13863"):
        config_of(make_gguf, **keys)


def test_names_that_mean_a_known_expression(make_gguf: Any) -> None:
    def ids(pre: str, text: str) -> list[int]:
        path = make_gguf("llama", metadata={"tokenizer.ggml.pre": pre})
        found: list[int] = (
            Tokenizer.from_str(open_checkpoint(str(path)).tokenizer_json()).encode(text).ids
        )
        return found

    text = "hello W12 3999 hell\r\n"
    for pre, alike in (
        ("smaug-bpe", "dbrx"), ("refact", "smollm"), ("deepseek-r1-qwen", "qwen2"),
        ("tekken", "gpt-4o"), ("pixtral", "llama-bpe"),
    ):  # fmt: skip
        assert (ids(pre, text) == ids(alike, text)) is (pre != "tekken")


def test_qwen35_keeps_marks_with_their_letters(make_gguf: Any) -> None:
    """Source: ggml-org/llama.cpp ``src/llama-vocab.cpp`` (MIT), the expression of the name."""

    def lengths(pre: str) -> list[int]:
        path = make_gguf("llama", metadata={"tokenizer.ggml.pre": pre})
        tokenizer = Tokenizer.from_str(open_checkpoint(str(path)).tokenizer_json())
        pieces = tokenizer.pre_tokenizer.pre_tokenize_str("कि 12")
        return [stop - start for _, (start, stop) in pieces]

    assert lengths("qwen2") == [1, 1, 1, 1, 1]
    assert lengths("qwen35") == [2, 1, 1, 1]


@pytest.mark.parametrize("factor", [0.0, 1.0, 8.0])
def test_factors_of_channels_and_one_of_all_are_refused(make_gguf: Any, factor: float) -> None:
    weights = {"rope_freqs.weight": np.full(32, 2.0, np.float32)}
    metadata = {"llama.rope.scaling.factor": factor}
    path = str(make_gguf("llama", weights=weights, metadata=metadata))
    if factor == 8.0:
        with pytest.raises(
            UnsupportedModelError, match=r"rope\.scaling\.factor is 8\.0, only 0 or 1"
        ):
            open_checkpoint(path)
    else:
        assert open_checkpoint(path).config.rope_scaling.kind == "factors"
