"""GGUF files: every value against the `gguf` package, every layout against transformers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.checkpoints.gguf_codes import TENSOR_TYPES
from edgedec.export.checkpoints.published import SpecialTokens
from edgedec.export.quantising.quantise import Quantized, measure_errors
from edgedec.models.config import RopeScaling
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families import find_family, matrices, weight_shapes
from edgedec.models.rope import rope_tables
from edgedec.models.weights import float_rows

BEGIN, END = {"bos_token": "<|im_start|>"}, {"eos_token": "<|im_end|>"}

gguf = pytest.importorskip("gguf", reason="needs the dev extra")


OF_LIBRARY = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]
HELD_AS = {
    "Q2_K": "f32", "Q3_K": "q6_k", "IQ4_NL": "q8_0", "IQ4_XS": "f32", "MXFP4": "q5_0",
    "TQ1_0": "q2_0", "TQ2_0": "q2_0", "NVFP4": "f32", **dict.fromkeys(OF_LIBRARY, "f32"),
}  # fmt: skip
"""Types without a storage format of their own -> the one that holds them to the last bit."""
OF_PACKAGE = [row for row in TENSOR_TYPES.items() if row[1].name not in ("Q1_0", "Q2_0")]
"""Numbers and types that the `gguf` package dequantises."""


def read_all(checkpoint: Any) -> dict[str, Any]:
    """Returns every weight as float32 by our name."""
    return {
        name: float_rows(checkpoint, name, 0, shape[0])
        if len(shape) == 2
        else checkpoint.vector(name)
        for name, shape in weight_shapes(checkpoint.config).items()
    }


def oracle(path: Path) -> dict[str, Any]:
    """Returns every tensor as the `gguf` package dequantises it."""
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(path).tensors
    }


@pytest.mark.parametrize("type_name", [row.name for _, row in OF_PACKAGE])
def test_rows_equal_the_gguf_package(make_gguf: Any, type_name: str) -> None:
    path = make_gguf("qwen2", type_name)
    checkpoint, expected = open_checkpoint(str(path)), oracle(path)
    weights = find_family("qwen2").weights(checkpoint.config)
    for name, values in read_all(checkpoint).items():
        np.testing.assert_array_equal(values, expected[weights[name].gguf.name], strict=True)
    assert checkpoint.format("layers.1.mlp.down_proj.weight").name == HELD_AS.get(
        type_name, type_name.lower()
    )


@pytest.mark.parametrize("row", OF_PACKAGE, ids=lambda row: row[1].name)
def test_random_blocks_decode_to_the_last_bit(row: Any) -> None:
    kind, tensor_type = row
    rng = np.random.default_rng(kind)
    rows = rng.integers(0, 256, (7, 6 * tensor_type.n_bytes), dtype=np.uint8)
    if tensor_type.name == "MXFP4":  # powers of two that float16 has
        rows[:, :: tensor_type.n_bytes] = rng.integers(104, 144, (7, 6))
    with np.errstate(all="ignore"):  # random scales include infinities
        got = tensor_type.plain(rows).dequantize()
        expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(kind))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(("kind", "name"), [(41, "q1_0"), (42, "q2_0")])
def test_types_of_one_and_two_bits_equal_llama_cpp(kind: int, name: str) -> None:
    # `ggml_few_bits.npz`: rows that ggml of llama-cpp-python 0.3.36 packed, rows of any codes, and
    # what it makes of both.
    stored = np.load(Path(__file__).with_name("ggml_few_bits.npz"))
    plain = TENSOR_TYPES[kind].plain(stored[f"{name}_rows"])
    assert plain.format.name == "q2_0"
    np.testing.assert_array_equal(plain.dequantize(), stored[f"{name}_values"])


@pytest.mark.parametrize(
    ("type_name", "stand_in"),
    [("Q2_K", "q4_1"), ("IQ4_XS", "q8_0"), ("NVFP4", "q8_0"), *((n, "q5_0") for n in OF_LIBRARY)],
)
def test_types_without_a_format_are_converted(
    make_gguf: Any, type_name: str, stand_in: str
) -> None:
    checkpoint = open_checkpoint(str(make_gguf("llama", type_name)))
    kept = Quantized(checkpoint, "keep")
    errors = measure_errors(checkpoint, kept)
    assert {error.format for error in errors} == {stand_in}
    assert len(errors) == len(matrices(checkpoint.config))
    # Their own codes are few to a group; rounding must not add as much again.
    bound = {"q4_1": 0.09, "q5_0": 0.09, "q8_0": 0.01}[stand_in]
    assert 0 < max(error.relative_rms for error in errors) < bound


@pytest.mark.parametrize("type_name", OF_LIBRARY)
def test_types_of_the_library_are_refused_without_it(
    make_gguf: Any, type_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_gguf("llama", type_name)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UnsupportedModelError, match=rf"has type {type_name}, .*\[gguf\]"):
        open_checkpoint(str(path))


def test_absurd_mxfp4_scales_are_refused(make_gguf: Any, tiny: Any) -> None:
    rows = np.full((tiny.VOCAB, 17 * tiny.HIDDEN // 32), 200, np.uint8)
    tensor_type = TENSOR_TYPES[39]
    with pytest.raises(CheckpointError, match=r"scale is 2\^72, expected at most 2\^15"):
        tensor_type.plain(rows)


def test_rows_of_any_range_are_those_of_the_whole(make_gguf: Any) -> None:
    checkpoint = open_checkpoint(str(make_gguf("llama", "Q4_K")))
    for name in ("layers.0.self_attn.q_proj.weight", "layers.0.mlp.down_proj.weight"):
        whole = checkpoint.rows(name, 0, 256).dequantize()
        for start, stop in ((0, 0), (0, 1), (31, 97), (255, 256)):
            part = checkpoint.rows(name, start, stop).dequantize()
            np.testing.assert_array_equal(part, whole[start:stop])


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("is_tied", [False, True])
def test_layout_equals_transformers(make_gguf: Any, tiny: Any, family: str, is_tied: bool) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = make_gguf(family, "Q8_0", {"output.weight": None} if is_tied else None)
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_config(config)
    loaded = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    state = {name.removeprefix("model."): tensor.numpy() for name, tensor in loaded.items()}
    checkpoint = open_checkpoint(str(path))
    assert checkpoint.config.is_head_tied is is_tied
    for name, values in read_all(checkpoint).items():
        np.testing.assert_array_equal(values, state[name], err_msg=name)


def test_llama_biases_follow_their_rows(make_gguf: Any, tiny: Any) -> None:
    weights = tiny.tiny_weights(has_bias=True)
    q = np.arange(tiny.HEADS * tiny.HEAD_SIZE, dtype=np.float32)
    half = tiny.HEAD_SIZE // 2
    # As the converter does it: halves become pairs within every head.
    stored = q.reshape(tiny.HEADS, 2, half).swapaxes(1, 2).reshape(-1)
    weights["blk.0.attn_q.bias"] = stored
    weights["blk.0.attn_q.weight"] = np.repeat(stored[:, None], tiny.HIDDEN, axis=1)
    checkpoint = open_checkpoint(str(make_gguf("llama", weights=weights)))
    assert checkpoint.config.has_qkv_bias
    np.testing.assert_array_equal(checkpoint.vector("layers.0.self_attn.q_proj.bias"), q)
    rows = float_rows(checkpoint, "layers.0.self_attn.q_proj.weight", 0, len(q))
    np.testing.assert_array_equal(rows[:, 0], q)


def test_facts_of_the_file(make_gguf: Any) -> None:
    checkpoint = open_checkpoint(str(make_gguf("llama")))
    config = checkpoint.config
    assert (config.family, config.vocab_size, config.n_layers) == ("llama", 300, 2)
    assert (config.n_heads, config.n_kv_heads, config.head_size) == (4, 2, 64)
    assert config.rms_norm_eps == pytest.approx(1e-5)
    assert config.rope_scaling == RopeScaling()
    assert checkpoint.name == "tiny-llama"
    assert checkpoint.licence == "apache-2.0"
    assert checkpoint.chat_template() == "{{ messages }}"
    assert checkpoint.special == SpecialTokens((2, 0), (), {**BEGIN, **END})


def test_absent_facts_are_none(make_gguf: Any) -> None:
    names = ("general.license", "tokenizer.chat_template", "tokenizer.ggml.bos_token_id")
    checkpoint = open_checkpoint(str(make_gguf("llama", metadata=dict.fromkeys(names))))
    assert checkpoint.licence is None
    assert checkpoint.chat_template() is None
    assert "bos_token" not in checkpoint.special.variables


def test_linear_rope_scaling(make_gguf: Any) -> None:
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    checkpoint = open_checkpoint(str(make_gguf("llama", metadata=scaling)))
    assert checkpoint.config.rope_scaling == RopeScaling("linear", factor=4.0)


def test_rope_factors_divide_frequencies(make_gguf: Any) -> None:
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    checkpoint = open_checkpoint(str(make_gguf("llama", weights={"rope_freqs.weight": factors})))
    assert checkpoint.config.rope_scaling.factors == tuple(factors.tolist())
    _, sine = rope_tables(checkpoint.config, 2)
    frequencies = 10000.0 ** -(np.arange(0, 64, 2) / 64) / factors
    np.testing.assert_allclose(sine[1], np.sin(frequencies), rtol=1e-6)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"llama.rope.scaling.type": "ntk", "llama.rope.scaling.factor": 4.0}, ["'ntk'"]),
        ({"llama.rope.dimension_count": 32}, ["rope.dimension_count is 32", "64"]),
        ({"llama.attention.key_length": 64, "llama.attention.value_length": 32}, ["value_length"]),
        ({"llama.expert_count": 8}, ["expert_used_count"]),
        ({"llama.attention.sliding_window": 128}, ["sliding_window is 128", "512"]),
        ({"llama.attention.head_count_kv": [2, 1]}, ["head_count_kv"]),
        ({"general.type": "adapter"}, ["adapter"]),
    ],
)
def test_variants_without_recipe_are_refused(
    make_gguf: Any, metadata: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises((UnsupportedModelError, CheckpointError)) as caught:
        open_checkpoint(str(make_gguf("llama", metadata=metadata)))
    assert all(word in str(caught.value) for word in ["tiny-llama.gguf", *words])


def test_unknown_family_is_named(make_gguf: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=r"falcon.*known families: .*llama, .*qwen2"):
        open_checkpoint(str(make_gguf("falcon")))


def test_missing_tensor_is_named(make_gguf: Any) -> None:
    path = make_gguf("llama", weights={"blk.1.ffn_up.weight": None})
    with pytest.raises(CheckpointError, match=r"missing tensor blk\.1\.ffn_up\.weight"):
        open_checkpoint(str(path))


def test_wrong_shape_is_named_with_both_shapes(make_gguf: Any) -> None:
    path = make_gguf("llama", weights={"blk.1.ffn_up.weight": np.ones((8, 256), np.float32)})
    with pytest.raises(CheckpointError, match=r"ffn_up\.weight has shape \[8, 256\].*\[512, 256\]"):
        open_checkpoint(str(path))


def test_tensor_nobody_reads_is_named(make_gguf: Any) -> None:
    path = make_gguf("llama", weights={"blk.0.attn_q_norm.weight": np.ones(64, np.float32)})
    with pytest.raises(UnsupportedModelError, match=r"does not read tensor blk\.0\.attn_q_norm"):
        open_checkpoint(str(path))


def test_unread_tensor_type_is_named(make_gguf: Any) -> None:
    path = make_gguf("llama", weights={"output.weight": np.ones((300, 256), np.int8)})
    with pytest.raises(
        UnsupportedModelError, match=r"output\.weight has type I8.*Q6_K.*take the model"
    ):
        open_checkpoint(str(path))


def test_released_pages_read_the_same_again(make_gguf: Any) -> None:
    checkpoint = open_checkpoint(str(make_gguf("llama", "Q4_0")))
    before = read_all(checkpoint)
    checkpoint.release()
    for name, values in read_all(checkpoint).items():
        np.testing.assert_array_equal(values, before[name])


def test_release_returns_memory(make_gguf: Any) -> None:
    status = Path("/proc/self/status")
    if not status.is_file():
        pytest.skip("needs /proc")

    def file_kb() -> int:
        line = next(row for row in status.read_text().splitlines() if row.startswith("RssFile"))
        return int(line.split()[1])

    checkpoint = open_checkpoint(str(make_gguf("llama")))
    checkpoint.release()
    before = file_kb()
    read_all(checkpoint)
    touched = file_kb()
    checkpoint.release()
    n_kb = sum(np.prod(s) for s in weight_shapes(checkpoint.config).values()) * 4 // 1024
    assert touched - before > n_kb // 2
    assert file_kb() - before < n_kb // 4


def test_recommended_sampling(make_gguf: Any) -> None:
    assert open_checkpoint(str(make_gguf("llama"))).sampling == {}
    keys = {"temp": 0.5, "top_k": 40, "penalty_repeat": 1.25}
    stated = {f"general.sampling.{key}": value for key, value in keys.items()}
    assert open_checkpoint(str(make_gguf("llama", metadata=stated))).sampling == {
        "do_sample": True, "temperature": 0.5, "top_k": 40, "repetition_penalty": 1.25,
    }  # fmt: skip
    greedy = make_gguf("llama", metadata={"general.sampling.temp": 0.0})
    assert open_checkpoint(str(greedy)).sampling == {"do_sample": False, "temperature": 0.0}
    with pytest.raises(CheckpointError, match=r"general\.sampling\.temp is 'hot'"):
        _ = open_checkpoint(
            str(make_gguf("llama", metadata={"general.sampling.temp": "hot"}))
        ).sampling


@pytest.mark.e2e
def test_smollm2_equals_the_gguf_package(smollm2_file: Path) -> None:
    checkpoint = open_checkpoint(str(smollm2_file))
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2_file).tensors}
    weights = find_family("llama").weights(checkpoint.config)
    for name in ("layers.29.mlp.down_proj.weight", "layers.3.self_attn.v_proj.weight"):
        tensor = tensors[weights[name].gguf.name]
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(float_rows(checkpoint, name, 0, len(expected)), expected)
    assert checkpoint.special == SpecialTokens(
        (2, 0), (), {**BEGIN, **END, "unk_token": "<|endoftext|>", "pad_token": "<|im_end|>"}
    )
    assert checkpoint.licence == "apache-2.0"
