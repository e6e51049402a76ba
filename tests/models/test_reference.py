"""The NumPy reference against transformers, and its KV cache against itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.models.reference import ReferenceModel, tree_mask

TOKENS = [3, 80, 7, 7, 41, 0, 12, 66, 5]

LLAMA3_SCALING = {
    "kind": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_positions": 16,
}


def transformers_model(source: Any) -> Any:
    """Returns transformers' own model with the weights of ``source``."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    c = source.config
    kinds = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    }
    make_config, make_model = kinds[c.family]
    scaling = None
    if c.rope_scaling.kind == "llama3":
        scaling = {
            "rope_type": "llama3",
            "factor": c.rope_scaling.factor,
            "low_freq_factor": c.rope_scaling.low_freq_factor,
            "high_freq_factor": c.rope_scaling.high_freq_factor,
            "original_max_position_embeddings": c.rope_scaling.original_max_positions,
        }
    config = make_config(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.n_layers,
        num_attention_heads=c.n_heads,
        num_key_value_heads=c.n_kv_heads,
        max_position_embeddings=c.max_positions,
        rms_norm_eps=c.rms_norm_eps,
        rope_theta=c.rope_theta,
        rope_scaling=scaling,
        tie_word_embeddings=c.is_head_tied,
    )
    model = make_model(config).eval()
    state = {
        name if name.startswith("lm_head") else f"model.{name}": torch.from_numpy(weight)
        for name, weight in source.weights.items()
    }
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if c.is_head_tied else set())
    model.tie_weights()
    return model


@pytest.mark.parity
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="llama"),
        pytest.param({"is_head_tied": True, "rope_theta": 5e5}, id="llama_tied"),
        pytest.param({"rope_scaling": LLAMA3_SCALING}, id="llama_rope_scaled"),
        pytest.param({"n_kv_heads": 4}, id="llama_without_gqa"),
        pytest.param({"n_kv_heads": 1}, id="llama_one_kv_head"),
        pytest.param({"family": "qwen2", "has_qkv_bias": True, "is_head_tied": True}, id="qwen2"),
    ],
)
def test_equals_transformers(make_source: Any, fields: dict[str, Any]) -> None:
    source = make_source(**fields)
    model = transformers_model(source)
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        out = model(torch.tensor([TOKENS]), output_hidden_states=True)
    rows = ReferenceModel(source).forward(TOKENS)
    np.testing.assert_allclose(rows.logits, out.logits[0].numpy(), atol=1e-4)
    for layer in range(source.config.n_layers):  # theirs has the final norm after the last layer
        theirs = out.hidden_states[layer][0].numpy()
        np.testing.assert_allclose(rows.hidden[layer], theirs, atol=1e-4)


def test_float32_and_float64_agree(make_source: Any) -> None:
    source = make_source()
    single = ReferenceModel(source).forward(TOKENS).logits
    double = ReferenceModel(source, np.float64).forward(TOKENS).logits
    assert double.dtype == np.float64
    np.testing.assert_allclose(single, double, atol=1e-5)


def test_kv_cache_continues_the_prefix(make_source: Any) -> None:
    source = make_source(family="qwen2", has_qkv_bias=True)
    whole = ReferenceModel(source, np.float64).forward(TOKENS).logits
    model = ReferenceModel(source, np.float64)
    start = 0
    for n in (3, 1, 4, 1):
        rows = model.forward(TOKENS[start : start + n], logit_rows=[n - 1])
        np.testing.assert_allclose(rows.logits, whole[[start + n - 1]], atol=1e-12)
        model.commit(n)
        start += n
    assert model.n_tokens == len(TOKENS)


def test_uncommitted_rows_leave_no_trace(make_source: Any) -> None:
    model = ReferenceModel(make_source(), np.float64)
    model.forward(TOKENS[:4])
    model.commit(4)
    expected = model.forward([9, 8]).logits
    model.forward([50, 51, 52])
    np.testing.assert_array_equal(model.forward([9, 8]).logits, expected)
    model.commit(2)
    model.truncate(4)
    np.testing.assert_array_equal(model.forward([9, 8]).logits, expected)


def test_tree_rows_equal_their_chains(make_source: Any) -> None:
    source = make_source()
    nodes, parents = [10, 20, 30, 40, 50, 60], [-1, -1, 0, 1, 2, 2]
    chains = {2: [10, 30], 3: [20, 40], 4: [10, 30, 50], 5: [10, 30, 60]}
    model = ReferenceModel(source, np.float64)
    model.forward(TOKENS)
    model.commit(len(TOKENS))
    tree = model.forward(nodes, parents).logits
    for row, chain in chains.items():
        alone = ReferenceModel(source, np.float64).forward([*TOKENS, *chain]).logits[-1]
        np.testing.assert_allclose(tree[row], alone, atol=1e-12)


def test_commit_keeps_the_accepted_path(make_source: Any) -> None:
    source = make_source()
    model = ReferenceModel(source, np.float64)
    model.forward([10, 20, 30, 40], [-1, -1, 0, 1])
    model.commit([1, 3])
    alone = ReferenceModel(source, np.float64).forward([20, 40, 7]).logits[-1]
    np.testing.assert_allclose(model.forward([7]).logits[0], alone, atol=1e-12)


def test_tree_mask_by_hand() -> None:
    mask, depths = tree_mask([-1, 0, 0, 2], n_past=1)
    assert mask.astype(int).tolist() == [
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]
    assert depths.tolist() == [0, 1, 1, 2]


def test_weights_are_released_while_streaming(make_source: Any) -> None:
    source = make_source()
    ReferenceModel(source).forward([1])
    assert source.n_releases == 7 * source.config.n_layers + 1
