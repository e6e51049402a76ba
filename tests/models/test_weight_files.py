"""Weights as directories hold them: shards and indexes, types, prefixes of names.

A table for each. What can be read gives the logits of transformers for the same model, all else is
refused in one line that says what is wrong.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.models.errors import CheckpointError, EdgedecError, UnsupportedModelError
from tests.models.test_checkpoints_as_published import (
    edit_config,
    edit_weights,
    error,
    safetensors,
    save,
    theirs,
    torch,
)

pytestmark = pytest.mark.parity

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARDS = tuple(f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3))
Change = Callable[[Path], Any]
Weights = dict[str, Any]


def in_shards(folder: Path) -> dict[str, str]:
    """Cuts the weights into three files with an index; returns its map."""
    weights = safetensors.load_file(folder / SINGLE)
    (folder / SINGLE).unlink()
    places = {name: SHARDS[i * 3 // len(weights)] for i, name in enumerate(sorted(weights))}
    for shard in SHARDS:
        own = {name: weights[name] for name, place in places.items() if place == shard}
        safetensors.save_file(own, folder / shard, {"format": "pt"})
    write_index(folder, places)
    return places


def write_index(folder: Path, places: Any, **more: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": places, **more}))


def index(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
    return found


def reindex(folder: Path, edit: Callable[[dict[str, str]], Any], **more: Any) -> None:
    write_index(folder, edit(index(folder)), **more)


def renamed(folder: Path, name: Callable[[str], str]) -> None:
    for shard in SHARDS:
        (folder / shard).rename(folder / name(shard))
    reindex(folder, lambda places: {k: name(v) for k, v in places.items()})


def moved_tensor(folder: Path, is_copied: bool) -> None:
    """Puts a tensor into another shard than the index says, or into both."""
    first, second = (safetensors.load_file(folder / shard) for shard in SHARDS[:2])
    name = sorted(first)[0]
    second[name] = first[name] if is_copied else first.pop(name)
    for shard, weights in zip(SHARDS, (first, second), strict=False):
        safetensors.save_file(weights, folder / shard, {"format": "pt"})


def other_model(path: Path) -> None:
    """Writes a file of weights that are not the model's."""
    safetensors.save_file({"model.norm.weight": torch.zeros(3)}, path)


def edit_header(path: Path, edit: Callable[[dict[str, Any]], Any], padding: int = 0) -> None:
    data = path.read_bytes()
    (n,) = struct.unpack_from("<Q", data)
    header = json.dumps(edit(json.loads(data[8 : 8 + n]))).encode() + b" " * padding
    path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + n :])


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 4976698672\n"
WHOLE_SHARDS: dict[str, Change] = {
    "in order": lambda f: None,
    "map in another order": lambda f: reindex(f, lambda m: dict(sorted(m.items(), reverse=True))),
    "wrong total size": lambda f: reindex(f, dict, metadata={"total_size": 7}),
    "metadata that says more": lambda f: reindex(f, dict, metadata={"total_parameters": None}),
    "no metadata in a shard": lambda f: edit_header(
        f / SHARDS[0], lambda h: {k: v for k, v in h.items() if k != "__metadata__"}
    ),
    "padded header": lambda f: edit_header(f / SHARDS[1], dict, padding=64),
    "other names of shards": lambda f: renamed(f, lambda name: name.replace("model-", "part.")),
    "names with blanks": lambda f: renamed(f, lambda name: f"my {name}"),
    "a tensor in another shard": lambda f: moved_tensor(f, is_copied=False),
    "a tensor twice": lambda f: moved_tensor(f, is_copied=True),
    "a name that no shard has": lambda f: reindex(f, lambda m: {**m, "old.weight": SHARDS[0]}),
    "names that are no text": lambda f: reindex(f, lambda m: {**m, "x": 3, "y": None}),
    "a shard of an earlier cut": lambda f: other_model(f / "model-00001-of-00009.safetensors"),
    "Mistral's own file beside": lambda f: other_model(f / "consolidated.safetensors"),
    "a variant beside": lambda f: other_model(f / "model.fp16.safetensors"),
    "an adapter beside": lambda f: other_model(f / "adapter_model.safetensors"),
    "macOS's file beside": lambda f: (f / f"._{SHARDS[0]}").write_bytes(b"\0\5\26\7"),
    "pickles beside": lambda f: (f / "pytorch_model.bin").write_bytes(b"\x80\x04."),
    "an index of pickles beside": lambda f: (f / "pytorch_model.bin.index.json").write_text("{"),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save(tmp_path, "llama")
    return tmp_path


def message(folder: Path, kind: type[EdgedecError]) -> str:
    with pytest.raises(kind) as caught:
        open_checkpoint(str(folder))
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


@pytest.mark.parametrize("name", WHOLE_SHARDS)
def test_shards_that_can_be_read(model: Path, name: str) -> None:
    expected = theirs(model)
    in_shards(model)
    WHOLE_SHARDS[name](model)
    assert error(model, expected) < 2e-3


def linked(folder: Path) -> None:
    """As the hub's cache has them: links to files by their hashes."""
    blobs = folder / "blobs"
    blobs.mkdir()
    for i, shard in enumerate(SHARDS):
        (folder / shard).rename(blobs / f"{i:064x}")
        (folder / shard).symlink_to(blobs / f"{i:064x}")


def test_shards_that_are_links(model: Path) -> None:
    expected = theirs(model)
    in_shards(model)
    linked(model)
    assert error(model, expected) < 2e-3


WHOLE_FILES: dict[str, Change] = {
    "an index of shards that are gone": lambda f: write_index(f, {"model.norm.weight": SHARDS[0]}),
    "an index of another model": lambda f: (
        other_model(f / SHARDS[0]),
        write_index(f, {"model.norm.weight": SHARDS[0]}),
    ),
    "an index that is damaged": lambda f: (f / INDEX).write_text("{"),
    "an index that is a pointer": lambda f: (f / INDEX).write_text(LFS),
}


@pytest.mark.parametrize("name", WHOLE_FILES)
def test_a_whole_file_counts_alone(model: Path, name: str) -> None:
    expected = theirs(model)
    WHOLE_FILES[name](model)
    assert error(model, expected) < 2e-3


BROKEN_SHARDS: dict[str, tuple[Change, str]] = {
    "a shard is missing": (lambda f: (f / SHARDS[1]).unlink(), f"{SHARDS[1]}, which is missing"),
    "a shard is empty": (
        lambda f: (f / SHARDS[1]).write_bytes(b""),
        "the file is empty; fetch it again",
    ),
    "a shard is cut off": (
        lambda f: (f / SHARDS[2]).write_bytes((f / SHARDS[2]).read_bytes()[:-9]),
        "truncated",
    ),
    "a shard is a pointer": (lambda f: (f / SHARDS[0]).write_text(LFS), "a pointer of Git LFS"),
    "the index is a pointer": (lambda f: (f / INDEX).write_text(LFS), "a pointer of Git LFS"),
    "the index is cut off": (lambda f: (f / INDEX).write_text("{"), "not JSON"),
    "the index is a list": (lambda f: (f / INDEX).write_text("[]"), "not a table"),
    "the index has no map": (lambda f: (f / INDEX).write_text("{}"), "names no files of weights"),
    "the map is empty": (lambda f: write_index(f, {}), "names no files of weights"),
    "the map is a list": (lambda f: write_index(f, [1]), "weight_map is"),
    "the map leaves the folder": (
        lambda f: reindex(f, lambda m: {**m, "x": "../other.safetensors"}),
        "leaves the directory",
    ),
    "the map is absolute": (
        lambda f: reindex(f, lambda m: {**m, "x": "/etc/passwd"}),
        "leaves the directory",
    ),
    "an index alone": (lambda f: [(f / shard).unlink() for shard in SHARDS], "which is missing"),
    "one shard alone": (
        lambda f: ((f / INDEX).unlink(), (f / SHARDS[1]).unlink()),
        "has neither model.safetensors nor",
    ),
}


@pytest.mark.parametrize("name", BROKEN_SHARDS)
def test_shards_that_are_refused(model: Path, name: str) -> None:
    change, words = BROKEN_SHARDS[name]
    in_shards(model)
    change(model)
    assert re.search(words, message(model, CheckpointError))


def of_type(
    *types: str, where: Callable[[str], bool] = lambda name: True
) -> Callable[[Weights], Weights]:
    """Returns an edit that stores weights as these types in turn, rounded beforehand."""

    def edit(weights: Weights) -> Weights:
        found = dict(weights)
        for i, name in enumerate(filter(where, sorted(weights))):
            found[name] = weights[name].to(getattr(torch, types[i % len(types)]))
        return found

    return edit


def is_norm(name: str) -> bool:
    return "norm" in name


def is_matrix(name: str) -> bool:
    return "norm" not in name


TYPES: dict[str, Callable[[Weights], Weights]] = {
    "all float64": of_type("float64"),
    "all float16": of_type("float16"),
    "all bfloat16": of_type("bfloat16"),
    "norms float64": of_type("float64", where=is_norm),
    "matrices float64": of_type("float64", where=is_matrix),
    "norms float16": of_type("float16", where=is_norm),
    "norms bfloat16": of_type("bfloat16", where=is_norm),
    "matrices float16": of_type("float16", where=is_matrix),
    "matrices bfloat16": of_type("bfloat16", where=is_matrix),
    "bfloat16 and float64 norms": lambda w: of_type("float64", where=is_norm)(
        of_type("bfloat16", where=is_matrix)(w)
    ),
    "float16 and bfloat16 norms": lambda w: of_type("bfloat16", where=is_norm)(
        of_type("float16", where=is_matrix)(w)
    ),
    "types in turn": of_type("float32", "float16", "bfloat16", "float64"),
    "embedding float32": of_type("bfloat16", where=lambda n: "embed" not in n),
    "head float16": of_type("float16", where=lambda n: n == "lm_head.weight"),
    "one layer bfloat16": of_type("bfloat16", where=lambda n: ".layers.1." in n),
    "q float16, k bfloat16": lambda w: of_type("float16", where=lambda n: "q_proj" in n)(
        of_type("bfloat16", where=lambda n: "k_proj" in n)(w)
    ),
    "rotation tables beside": lambda w: w | {
        f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(6) for i in range(4)
    },
    "one rotation table beside": lambda w: w | {"model.rotary_emb.inv_freq": torch.ones(6).half()},
}  # fmt: skip


LAYER = "model.layers.0.self_attn"
BESIDE = {
    "a state of Transformer Engine": {f"{LAYER}._extra_state": torch.zeros(9, dtype=torch.uint8)},
    "an empty state": {f"{LAYER}.core_attention._extra_state": torch.zeros(0)},
    "a bias of masked places": {f"{LAYER}.masked_bias": torch.tensor(-1e4)},
    "numbers of positions": {"model.embeddings.position_ids": torch.arange(4)},
    "scales of an FP8 cache": {f"{LAYER}.{one}_scale": torch.tensor(2.0) for one in "kv"},
    "scales of an FP8 cache by matrix": {
        f"{LAYER}.k_proj.k_scale": torch.tensor(2.0),
        f"{LAYER}.v_proj.v_scale": torch.tensor(2.0),
    },
    "a head that rates": {"v_head.summary.weight": torch.ones(1, 40),
                          "v_head.summary.bias": torch.ones(1)},
    "a tower with whole numbers": {"vision_tower.ids": torch.arange(4),
                                   "vision_tower.w": torch.ones(2, 2)},
}  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
def test_what_changes_no_logit_is_passed_over(model: Path, name: str) -> None:
    expected = theirs(model)
    edit_weights(model, lambda w: {**w, **BESIDE[name]})
    assert error(model, expected) < 2e-3


@pytest.mark.parametrize(
    "beside", [f"{LAYER}.q_proj.lora_A.weight", f"{LAYER}.q_proj.scale", "score.weight"]
)
def test_what_may_change_logits_is_refused(model: Path, beside: str) -> None:
    edit_weights(model, lambda w: {**w, beside: torch.ones(2, 40)})
    assert f"does not read tensor {beside}" in message(model, UnsupportedModelError)


def test_an_embedding_that_was_saved_as_the_head(tmp_path: Path) -> None:
    """As `safetensors.torch.save_model` leaves it, which keeps one of two names."""
    save(tmp_path, "llama", tie_word_embeddings=True)
    expected = theirs(tmp_path)
    embedding = "model.embed_tokens.weight"
    edit_weights(
        tmp_path,
        lambda w: {"lm_head.weight" if k == embedding else k: v for k, v in w.items()},
    )
    assert error(tmp_path, expected) < 2e-3
    edit_config(tmp_path, lambda config: config.update(tie_word_embeddings=False))
    assert f"missing tensor {embedding}" in message(tmp_path, CheckpointError)


ELSEWHERE = {
    "in a GGUF file": ("m.gguf", r"in a GGUF file; export .*m\.gguf instead"),
    "under another name": ("weights.safetensors", r"but weights\.safetensors; if .* call it model"),
    "pickled": ("consolidated.00.pth", r"consolidated\.00\.pth, which may run code"),
}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_weights_that_lie_elsewhere(model: Path, where: str) -> None:
    name, words = ELSEWHERE[where]
    (model / "model.safetensors").rename(model / name)
    assert re.search(words, message(model, CheckpointError))


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "is a LoRA adapter; export the model that it adapts" in message(
        tmp_path, CheckpointError
    )


@pytest.mark.parametrize("page", ["<!DOCTYPE html>\n<html>", "<html><body>"])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json", "x.gguf"])
def test_a_web_page_in_place_of_a_file(model: Path, name: str, page: str) -> None:
    (model / name).write_text(page)
    with pytest.raises(CheckpointError, match=f"{name}: is a web page"):
        open_checkpoint(str(model / name if name == "x.gguf" else model)).tokenizer_json()


PACKED = {
    "bitsandbytes": (
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        "of bitsandbytes with 8 bits",
    ),
    "Marlin": (
        {"quant_method": "compressed-tensors", "format": "marlin-24"},
        "quantization_config.format is 'marlin-24', only 'float-quantized'",
    ),
    "integers of ModelOpt": (
        {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"},
        "W4A8_AWQ",
    ),
}


@pytest.mark.parametrize("name", PACKED)
def test_packings_are_named_before_their_tensors(model: Path, name: str) -> None:
    packing, words = PACKED[name]
    edit_config(model, lambda config: config.update(quantization_config=packing))
    edit_weights(model, lambda w: {**w, f"{LAYER}.q_proj.weight_shape": torch.tensor([48, 40])})
    assert words in message(model, UnsupportedModelError)


@pytest.mark.parametrize("name", TYPES)
def test_types_that_can_be_read(model: Path, name: str) -> None:
    edit_weights(model, TYPES[name])
    assert error(model, theirs(model)) < 2e-3


def quantised(dtype: Any, scale: Any) -> Callable[[Weights], Weights]:
    """Returns an edit that stores the layers' matrices as ``dtype`` with ``scale`` beside."""

    def edit(weights: Weights) -> Weights:
        found: Weights = {}
        for name, values in weights.items():
            if not name.endswith("_proj.weight"):
                found[name] = values
                continue
            found[name] = values.to(dtype)
            if scale is not None:
                found[name + "_scale"] = scale.clone()
        return found

    return edit


def as_floats(folder: Path) -> None:
    """Stores what FP8 values with one scale stand for."""

    def edit(weights: Weights) -> Weights:
        found = {k: v for k, v in weights.items() if not k.endswith("_scale")}
        for name, values in found.items():
            if f"{name}_scale" in weights:
                found[name] = values.float() * weights[f"{name}_scale"].float()
        return found

    edit_weights(folder, edit)


FP8 = {
    "e4m3, a scale": quantised(torch.float8_e4m3fn, torch.tensor([0.7])),
    "e4m3, a scale without axes": quantised(torch.float8_e4m3fn, torch.tensor(0.7)),
    "e4m3, a bfloat16 scale": quantised(torch.float8_e4m3fn, torch.tensor([0.7]).bfloat16()),
    "e4m3, a float16 scale": quantised(torch.float8_e4m3fn, torch.tensor([0.7]).half()),
    "e5m2, a scale": quantised(torch.float8_e5m2, torch.tensor([0.7])),
    "e5m2, a bfloat16 scale": quantised(torch.float8_e5m2, torch.tensor([0.7]).bfloat16()),
}


@pytest.mark.parametrize("name", FP8)
def test_fp8_that_can_be_read(
    model: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    edit_weights(model, FP8[name])
    plain = tmp_path_factory.mktemp("plain")
    for file in model.iterdir():
        (plain / file.name).write_bytes(file.read_bytes())
    as_floats(plain)
    fields = json.loads((model / "config.json").read_text())
    fields["quantization_config"] = {"quant_method": "fp8"}
    (model / "config.json").write_text(json.dumps(fields))
    assert error(model, theirs(plain)) < 2e-3


REFUSED: dict[str, Callable[[Weights], Weights]] = {
    "e4m3 without scales": quantised(torch.float8_e4m3fn, None),
    "e5m2 without scales": quantised(torch.float8_e5m2, None),
    "int8 without scales": quantised(torch.int8, None),
    "uint8 without scales": quantised(torch.uint8, None),
    "int32": of_type("int32", where=lambda n: "up_proj" in n),
    "int64": of_type("int64", where=lambda n: "up_proj" in n),
    "bool": of_type("bool", where=lambda n: "up_proj" in n),
    "complex64": of_type("complex64", where=lambda n: "up_proj" in n),
    "norms in fp8": of_type("float8_e4m3fn", where=is_norm),
    "an embedding in fp8": of_type("float8_e5m2", where=lambda n: "embed" in n),
}


@pytest.mark.parametrize("name", REFUSED)
def test_types_that_are_refused(model: Path, name: str) -> None:
    edit_weights(model, REFUSED[name])
    with pytest.raises(EdgedecError) as caught:
        open_checkpoint(str(model))
    assert len(str(caught.value).splitlines()) == 1
    assert "model.layers.0" in str(caught.value) or "model." in str(caught.value)


@pytest.mark.parametrize(
    "type_name", ["F8_E8M0", "F4", "F6_E2M3", "F8_E4M3FNUZ", "I16", "U64", "x"]
)
def test_types_of_files_without_reader_are_named(model: Path, type_name: str) -> None:
    def edit(header: dict[str, Any]) -> dict[str, Any]:
        header["model.norm.weight"]["dtype"] = type_name
        return header

    edit_header(model / SINGLE, edit)
    assert repr(type_name) in message(model, UnsupportedModelError)


def below(prefix: str, head: str | None = None) -> Callable[[Weights], Weights]:
    """Returns an edit that puts the text model below ``prefix``, its head below ``head``."""

    def edit(weights: Weights) -> Weights:
        head_name = f"{prefix if head is None else head}lm_head.weight"
        return {
            head_name if k == "lm_head.weight" else prefix + k.removeprefix("model."): v
            for k, v in weights.items()
        }

    return edit


PREFIXES = {
    "none": below(""), "model.model.": below("model.model."), "llm.": below("llm."),
    "llm.model.": below("llm.model.", "llm."), "language_model.": below("language_model."),
    "language_model.model.": below("language_model.model.", "language_model."),
    "model.language_model., head outside": below("model.language_model.", ""),
    "model.language_model.model.": below("model.language_model.model.", "model.language_model."),
    "model.text_model.": below("model.text_model.", "model."),
    "text_model.": below("text_model.", ""), "text_model.model.": below("text_model.model.", ""),
    "base_model.model.model.": below("base_model.model.model.", "base_model.model."),
    "transformer.": below("transformer.", ""), "decoder.": below("decoder.", ""),
    "model.decoder.": below("model.decoder.", ""),
    "module.model.": below("module.model.", "module."),
    "_orig_mod.model.": below("_orig_mod.model.", "_orig_mod."),
    "module._orig_mod.model.": below("module._orig_mod.model.", "module._orig_mod."),
    "_fsdp_wrapped_module.model.": below("_fsdp_wrapped_module.model.", "_fsdp_wrapped_module."),
    "student.model.": below("student.model.", "student."), "0.": below("0.", ""),
    "policy.": below("policy.", "policy."), "thinker.model.": below("thinker.model.", "thinker."),
    "backbone.": below("backbone.", ""), "a.b.c.d.": below("a.b.c.d.", "a.b."),
}  # fmt: skip


@pytest.mark.parametrize("name", PREFIXES)
def test_prefixes_of_names(model: Path, name: str) -> None:
    expected = theirs(model)
    edit_weights(model, PREFIXES[name])
    assert error(model, expected) < 2e-3


STRAY: dict[str, Callable[[Weights], Weights]] = {
    "two embeddings": lambda w: w | {
        "x.embed_tokens.weight": w["model.embed_tokens.weight"].clone()
    },
    "a part of another model": lambda w: w | {"other.layers.0.weight": torch.ones(2)},
    "a classifier": lambda w: w | {"score.weight": torch.ones(2, 40)},
    "a layer too many": lambda w: w | {
        k.replace("layers.0", "layers.4"): v.clone() for k, v in w.items() if "layers.0" in k
    },
}  # fmt: skip


@pytest.mark.parametrize("name", STRAY)
def test_weights_that_nobody_reads_are_named(model: Path, name: str) -> None:
    edit_weights(model, STRAY[name])
    assert "does not read" in message(model, UnsupportedModelError)
