"""Hugging Face directories written by transformers, read by us."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import edgedec
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.checkpoints.published import SpecialTokens
from edgedec.export.checkpoints.safetensors_dir import HuggingFaceCheckpoint, read_model_type
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.config import RopeScaling
from edgedec.models.errors import CheckpointError, EdgedecError, UnsupportedModelError
from edgedec.models.families import weight_shapes
from edgedec.models.weights import float_rows

torch = pytest.importorskip("torch", reason="needs the dev extra")
transformers = pytest.importorskip("transformers", reason="needs the dev extra")

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [
        {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for i, text in enumerate(["<bos>", "<eos>"])
    ],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "BPE", "vocab": {"<bos>": 0, "<eos>": 1, "a": 2}, "merges": []},
}  # fmt: skip

Maker = Callable[..., tuple[Path, dict[str, Any]]]


@pytest.fixture
def make_folder(tmp_path: Path) -> Maker:
    """Returns a writer of tiny models; it returns the folder and the weights by our names."""

    def make(
        family: str = "llama", dtype: str = "float32", shard: str = "1GB", **fields: Any
    ) -> tuple[Path, dict[str, Any]]:
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(family, **{**SIZES, **fields})
        model = transformers.AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        folder = tmp_path / f"tiny-{family}"
        model.save_pretrained(folder, max_shard_size=shard)
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        state = model.state_dict().items()
        return folder, {n.removeprefix("model."): t.float().numpy() for n, t in state}

    return make


def edit(path: Path, **fields: Any) -> None:
    """Sets keys of a JSON file; None removes one."""
    values = json.loads(path.read_text()) if path.exists() else {}
    values = {k: v for k, v in {**values, **fields}.items() if v is not None}
    path.write_text(json.dumps(values))


def assert_equal(checkpoint: Any, expected: dict[str, Any]) -> None:
    for name, shape in weight_shapes(checkpoint.config).items():
        if len(shape) == 2:
            got = float_rows(checkpoint, name, 0, shape[0])
            middle = float_rows(checkpoint, name, 3, 7)
            np.testing.assert_array_equal(middle, expected[name][3:7])
        else:
            got = checkpoint.vector(name)
        np.testing.assert_array_equal(got, expected[name], err_msg=name, strict=True)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("shard", ["1GB", "15KB"])
def test_weights_equal_transformers(
    make_folder: Maker, family: str, is_tied: bool, shard: str
) -> None:
    folder, expected = make_folder(family, shard=shard, tie_word_embeddings=is_tied)
    assert (folder / "model.safetensors.index.json").exists() is (shard == "15KB")
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.config.is_head_tied is is_tied
    assert checkpoint.config.has_qkv_bias is (family == "qwen2")
    assert checkpoint.config.family == family == read_model_type(folder)
    assert_equal(checkpoint, expected)
    checkpoint.release()
    assert_equal(checkpoint, expected)


@pytest.mark.parametrize(("dtype", "name"), [("float16", "f16"), ("bfloat16", "bf16")])
def test_half_precision(make_folder: Maker, dtype: str, name: str) -> None:
    folder, expected = make_folder(dtype=dtype)
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.format("layers.0.mlp.up_proj.weight").name == name
    assert_equal(checkpoint, expected)


def test_config_of_llama(make_folder: Maker) -> None:
    folder, _ = make_folder(head_dim=16, rope_theta=5e5, rope_scaling=LLAMA3_ROPE)
    config = open_checkpoint(str(folder)).config
    assert (config.head_size, config.n_heads, config.n_kv_heads) == (16, 4, 2)
    assert config.rope_theta == 5e5
    assert config.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 32)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rope_scaling": None}, RopeScaling()),
        ({"rope_scaling": {"rope_type": "default"}}, RopeScaling()),
        ({"rope_scaling": {"type": "linear", "factor": 4}}, RopeScaling("linear", 4.0)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}, RopeScaling()),
        (
            {"rope_parameters": {**LLAMA3_ROPE, "rope_theta": 77.0}},
            RopeScaling("llama3", 8.0, 1.0, 4.0, 32),
        ),
    ],
)
def test_rope_of_both_styles(
    make_folder: Maker, fields: dict[str, Any], expected: RopeScaling
) -> None:
    folder, _ = make_folder()
    edit(folder / "config.json", **fields)
    config = open_checkpoint(str(folder)).config
    assert config.rope_scaling == expected
    assert config.rope_theta == (77.0 if "rope_parameters" in fields else 10000.0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rope_scaling": {"rope_type": "abf", "factor": 4.0}}, ["'abf'", "llama3"]),
        ({"rope_scaling": {"type": "ntk", "factor": 4.0}}, ["'ntk'", "linear"]),
        ({"hidden_act": "gelu"}, ["hidden_act is 'gelu'", "'silu'"]),
        ({"quantization_config": {"quant_method": "hqq"}}, ["'hqq'", "gptq"]),
        ({"model_type": "mamba"}, ["mamba", "llama, ", "qwen2"]),
        ({"model_type": "../evil"}, ["evil", "llama, ", "qwen2"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor is 0.5"]),
    ],
)
def test_variants_without_recipe_are_refused(
    make_folder: Maker, fields: dict[str, Any], words: list[str]
) -> None:
    folder, _ = make_folder()
    edit(folder / "config.json", **fields)
    with pytest.raises(UnsupportedModelError) as caught:
        open_checkpoint(str(folder))
    assert all(word in str(caught.value) for word in words)


def test_sliding_windows_of_qwen2(make_folder: Maker) -> None:
    folder, _ = make_folder("qwen2", use_sliding_window=False, sliding_window=16)
    assert open_checkpoint(str(folder)).config.windowed_layers == ()
    windows = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
    edit(folder / "config.json", **windows, layer_types=None)
    config = open_checkpoint(str(folder)).config
    assert config.windowed_layers == tuple(range(1, config.n_layers))
    assert config.look_back == 15


def test_output_biases(make_folder: Maker) -> None:
    folder, expected = make_folder(attention_bias=True)
    assert_equal(open_checkpoint(str(folder)), expected)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "32"}, "hidden_size is '32', expected an integer"),
        ({"num_hidden_layers": 10**8}, "n_layers is 100000000, expected at most 10000"),
        ({"num_attention_heads": 0}, "n_heads is 0"),
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"vocab_size": 97}, r"shape \[96, 32\], expected \[97, 32\]"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": 3}, "expected a table"),
        ({"tie_word_embeddings": 1}, "expected true or false"),
    ],
)
def test_configs_that_contradict(make_folder: Maker, fields: dict[str, Any], words: str) -> None:
    folder, _ = make_folder()
    edit(folder / "config.json", **fields)
    with pytest.raises(CheckpointError, match=words):
        open_checkpoint(str(folder))


def test_missing_files_are_named(make_folder: Maker) -> None:
    folder, _ = make_folder(shard="15KB")
    shard = sorted(folder.glob("*.safetensors"))[0]
    moved = shard.rename(folder / "elsewhere")
    with pytest.raises(CheckpointError, match=shard.name):
        open_checkpoint(str(folder))
    moved.rename(shard)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"neither tokenizer\.json nor .*save_pretrained"):
        open_checkpoint(str(folder)).tokenizer_json()
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        open_checkpoint(str(folder))


def test_index_cannot_leave_the_folder(make_folder: Maker) -> None:
    folder, _ = make_folder(shard="15KB")
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"model.norm.weight": "../model.safetensors"}}))
    with pytest.raises(CheckpointError, match="leaves the directory"):
        open_checkpoint(str(folder))


def test_special_tokens(make_folder: Maker) -> None:
    folder, _ = make_folder(bos_token_id=0, eos_token_id=5)
    edit(folder / "generation_config.json", bos_token_id=0, eos_token_id=[1, 7])
    assert open_checkpoint(str(folder)).special == SpecialTokens((1, 7), start_id=0)
    (folder / "generation_config.json").unlink()
    assert open_checkpoint(str(folder)).special.eos_ids == (5,)
    edit(folder / "tokenizer_config.json", eos_token="<eos>")
    assert open_checkpoint(str(folder)).special.eos_ids == (5, 1)
    edit(folder / "config.json", eos_token_id=None, bos_token_id=None)
    edit(folder / "tokenizer_config.json", eos_token={"content": "<eos>"}, bos_token="<bos>")
    assert open_checkpoint(str(folder)).special == SpecialTokens(
        (1,), (0,), {"bos_token": "<bos>", "eos_token": "<eos>"}
    )
    edit(folder / "generation_config.json", eos_token_id=[9999, -1, 4])
    assert open_checkpoint(str(folder)).special.eos_ids == (4, 1)
    edit(folder / "config.json", eos_token_id=5)
    edit(folder / "generation_config.json", eos_token_id=[9999, -1])  # none that could end a text
    assert open_checkpoint(str(folder)).special.eos_ids == (5, 1)
    edit(folder / "generation_config.json", eos_token_id="</s>")
    with pytest.raises(CheckpointError, match="eos_token_id is '</s>', expected an integer"):
        assert open_checkpoint(str(folder)).special


SAMPLING = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8}


def test_the_recommended_sampling_becomes_the_bundles(make_folder: Maker, tmp_path: Path) -> None:
    folder, _ = make_folder()
    edit(folder / "generation_config.json", repetition_penalty=1.1, max_length=9, **SAMPLING)
    assert open_checkpoint(str(folder)).sampling == {**SAMPLING, "repetition_penalty": 1.1}
    export(ExportConfig(str(folder), tmp_path / "b", device_target="portable"))
    with edgedec.load(tmp_path / "b") as engine:
        sampling = engine.defaults.sampling
    assert sampling == edgedec.SamplingConfig(
        temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.1
    )


@pytest.mark.parametrize("stated", [{}, {"do_sample": False}, {"temperature": 0.6, "top_p": 0.9}])
def test_without_do_sample_a_bundle_is_greedy(
    make_folder: Maker, tmp_path: Path, stated: dict[str, Any]
) -> None:
    folder, _ = make_folder()
    edit(folder / "generation_config.json", **stated)
    export(ExportConfig(str(folder), tmp_path / "b", device_target="portable"))
    with edgedec.load(tmp_path / "b") as engine:
        assert engine.defaults.sampling.is_greedy


@pytest.mark.parametrize(
    "fields", [{"do_sample": "yes"}, {"temperature": "hot"}, {"top_k": 2.5}, {"top_p": [0.9]}]
)
def test_recommendations_of_the_wrong_type(make_folder: Maker, fields: dict[str, Any]) -> None:
    folder, _ = make_folder()
    edit(folder / "generation_config.json", **{**SAMPLING, **fields})
    with pytest.raises(CheckpointError, match=rf"generation_config\.json: {next(iter(fields))} is"):
        _ = open_checkpoint(str(folder)).sampling


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("top_k", -1), ("top_k", 0), ("top_p", 1.0), ("top_p", 0), ("top_p", 1.5), ("min_p", 0),
        ("min_p", -1), ("temperature", -1), ("repetition_penalty", 0), ("repetition_penalty", -1.0),
    ],
)  # fmt: skip
def test_recommendations_that_mean_off(
    make_folder: Maker, tmp_path: Path, key: str, value: float
) -> None:
    folder, _ = make_folder()
    edit(folder / "generation_config.json", **{**SAMPLING, key: value})
    kept = {name: number for name, number in SAMPLING.items() if name != key}
    assert open_checkpoint(str(folder)).sampling == kept
    edgedec.GenerationConfig.from_bundle(open_checkpoint(str(folder)).sampling)


def test_tokenizer_that_adds_bos(make_folder: Maker) -> None:
    folder, _ = make_folder(bos_token_id=0)
    template = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<bos>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [0], "tokens": ["<bos>"]}},
    }
    edit(folder / "tokenizer.json", post_processor=template)
    assert open_checkpoint(str(folder)).special.opening_ids == (0,)


def test_chat_template_wherever_it_is(make_folder: Maker) -> None:
    folder, _ = make_folder()
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.chat_template() is None
    edit(folder / "tokenizer_config.json", chat_template=[{"name": "default", "template": "list"}])
    assert checkpoint.chat_template() == "list"
    edit(folder / "tokenizer_config.json", chat_template="plain")
    assert checkpoint.chat_template() == "plain"
    edit(folder / "chat_template.json", chat_template="table")
    assert checkpoint.chat_template() == "table"
    (folder / "chat_template.jinja").write_text("jinja")
    assert checkpoint.chat_template() == "jinja"


def test_licence_and_name(make_folder: Maker) -> None:
    folder, _ = make_folder()
    assert open_checkpoint(str(folder)).licence is None
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# Tiny\n")
    assert open_checkpoint(str(folder)).licence == "apache-2.0"
    assert open_checkpoint(str(folder)).name == "tiny-llama"
    assert HuggingFaceCheckpoint(folder, name="SmolLM2").name == "SmolLM2"


@pytest.mark.robustness
def test_truncated_safetensors(make_folder: Maker) -> None:
    folder, _ = make_folder()
    path = folder / "model.safetensors"
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for offset in rng.integers(0, len(content), 50):
        path.write_bytes(content[:offset])
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            open_checkpoint(str(folder))


@pytest.mark.robustness
def test_hostile_safetensors_headers(make_folder: Maker) -> None:
    folder, _ = make_folder()
    path = folder / "model.safetensors"
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])

    def refusal(changed: Any) -> str:
        text = json.dumps(changed).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])
        with pytest.raises((CheckpointError, UnsupportedModelError)) as caught:
            open_checkpoint(str(folder))
        return str(caught.value)

    norm = header["model.norm.weight"]
    assert "type 'I16', supported: F32" in refusal(
        {**header, "model.norm.weight": {**norm, "dtype": "I16"}}
    )
    for bad in ({}, {**norm, "shape": [-1]}, {**norm, "data_offsets": [0]}, 7, None, "x"):
        assert "whole numbers" in refusal({**header, "model.norm.weight": bad})
    outside = {**norm, "data_offsets": [2**40, 2**40 + 128]}
    assert "truncated" in refusal({**header, "model.norm.weight": outside})
    assert "2 tensors: model.norm.weight" not in refusal([])
    del header["model.norm.weight"]
    assert "missing tensor model.norm.weight" in refusal(header)


@pytest.mark.robustness
@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(flips=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes_never_escape(flipped_folder: Path, flips: list[tuple[float, int]]) -> None:
    path = flipped_folder / "model.safetensors"
    whole = (flipped_folder / "healthy").read_bytes()
    (size,) = struct.unpack("<Q", whole[:8])
    content = bytearray(whole)
    for fraction, value in flips:
        content[int(fraction * (size + 7))] = value
    path.write_bytes(content)
    try:
        open_checkpoint(str(flipped_folder))
    except EdgedecError as error:
        line = str(error)
    else:
        line = "read"
    assert len(line.splitlines()) == 1


@pytest.fixture
def flipped_folder(make_folder: Maker) -> Path:
    folder, _ = make_folder()
    (folder / "healthy").write_bytes((folder / "model.safetensors").read_bytes())
    return folder
