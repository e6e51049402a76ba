"""Writes the whole inputs that fuzzing starts from: tools/fuzz/seeds.py FOLDER."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import readers
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save

from edgedec.models.bundle_files import FileEntry
from edgedec.models.config import LayerConfig, ModelConfig, RopeScaling
from edgedec.models.families import find_family, weight_shapes
from edgedec.models.graph import ROW_STATS, Capabilities, GraphContract, KVLayout, stats_port
from edgedec.models.manifest import BundleManifest
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore

CONFIG = ModelConfig("llama", 8, 32, 32, 1, 2, 1, 16, 64, 1e-5)
TOKENS = ["<|endoftext|>", "<|im_end|>", "a", "b", "ab", "Ġ", "c", "[PAD]"]
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
Packer = Callable[[torch.Tensor], dict[str, torch.Tensor]]
TEMPLATE = "{% for m in messages %}{{ m.role + ': ' + m['content'] | trim }}\n{% endfor %}"


def gguf_file(family: str, type_name: str) -> bytes:
    """Returns a whole GGUF file with matrices of a type."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "seed.gguf")
        writer = gguf.GGUFWriter(path, family)
        for key, value in {
            "block_count": 1, "context_length": 64, "embedding_length": 32,
            "feed_forward_length": 32, "attention.head_count": 2, "attention.head_count_kv": 1,
        }.items():  # fmt: skip
            writer.add_uint32(f"{family}.{key}", value)
        writer.add_float32(f"{family}.attention.layer_norm_rms_epsilon", 1e-5)
        writer.add_string("tokenizer.ggml.model", "gpt2")
        writer.add_string("tokenizer.ggml.pre", "qwen2" if family == "qwen2" else "smollm")
        writer.add_array("tokenizer.ggml.tokens", TOKENS)
        writer.add_array("tokenizer.ggml.token_type", [3, 3, 1, 1, 1, 1, 1, 5])
        writer.add_array("tokenizer.ggml.merges", ["a b"])
        writer.add_uint32("tokenizer.ggml.eos_token_id", 1)
        writer.add_float32("general.sampling.temp", 0.5)
        writer.add_string("tokenizer.chat_template", "{{ messages }}")
        kind = gguf.GGMLQuantizationType[type_name]
        for ours, weight in find_family(family).weights(_config(family)).items():
            values = np.ones(weight.shape, np.float32)
            if values.ndim == 2:
                values = gguf.quants.quantize(values, kind)
                writer.add_tensor(weight.gguf.name, values, raw_dtype=kind)
            elif "norm" in ours or "bias" in ours:
                writer.add_tensor(weight.gguf.name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def _config(family: str) -> ModelConfig:
    return replace(CONFIG, family=family, has_qkv_bias=family == "qwen2", is_head_tied=True)


def as_it_is(ones: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns floats."""
    return {"weight": ones}


def as_fp8(ones: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns FP8 values with a scale for each row."""
    return {"weight": ones.to(torch.float8_e4m3fn), "weight_scale": torch.ones(len(ones), 1)}


def as_words(ones: torch.Tensor, is_awq: bool) -> dict[str, torch.Tensor]:
    """Returns 4-bit codes in the layout of GPTQ, or of AWQ, in one group."""
    n, k = ones.shape
    words = (k, n // 8) if is_awq else (k // 8, n)
    parts = {
        "qweight": torch.zeros(words, dtype=torch.int32),
        "qzeros": torch.zeros((1, n // 8), dtype=torch.int32),
        "scales": torch.ones((1, n), dtype=torch.float16),
    }
    return parts if is_awq else {**parts, "g_idx": torch.zeros(k, dtype=torch.int32)}


def safetensors_folder(dtype: torch.dtype, pack: Packer = as_it_is, **quantization: Any) -> bytes:
    """Returns config.json, generation_config.json and model.safetensors of a whole folder.

    pack: from the ones of a linear layer to the tensors that stand for them.
    """
    config: dict[str, Any] = {
        "model_type": "llama", "vocab_size": 8, "hidden_size": 32, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "eos_token_id": 1, "bos_token_id": 0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }  # fmt: skip
    settings = {"do_sample": True, "temperature": 0.6, "top_k": 40, "eos_token_id": [1, 2]}
    config |= {"quantization_config": quantization} if quantization else {}
    weights = find_family("llama").weights(_config("llama"))
    tensors: dict[str, torch.Tensor] = {}
    for weight in weights.values():
        stem, _, part = weight.hf.name.rpartition(".")
        ones = torch.ones(weight.shape, dtype=dtype)
        parts = pack(ones) if stem.endswith("proj") else {part: ones}
        tensors |= {f"{stem}.{name}": values.contiguous() for name, values in parts.items()}
    files = json.dumps(config).encode(), json.dumps(settings).encode(), save(tensors)
    return readers.SEPARATOR.join(files)


def bundle(is_panels: bool) -> bytes:
    """Returns manifest.json and generation_config.json of a whole bundle."""
    settings = b'{"do_sample": true, "temperature": 0.5, "top_k": 5}'
    files = {**readers.BUNDLE_FILES, "generation_config.json": settings}
    contract = GraphContract(
        compiler="fused", backend="fused", triple="any", providers=("CPUExecutionProvider",),
        inputs=("input_ids", "parents", "k_cache", "v_cache", "layer_gates"),
        outputs=("logits", "hidden.1", *map(stats_port, ROW_STATS)),
        kv=KVLayout("panels", "float16", row_nbytes=32, block_nbytes=128),
        can=Capabilities(trees=True, gates=True, row_stats=True, hidden=(1,)),
    )  # fmt: skip
    if not is_panels:
        past = ("past_key_values.0.key", "past_key_values.0.value")
        present = tuple(name.replace("past_key_values", "present") for name in past)
        contract = replace(
            contract, inputs=("input_ids", *past), outputs=("logits", *present),
            kv=KVLayout("rows", "float32", 64), can=Capabilities(),
        )  # fmt: skip
    entry = ModelEntry(
        kind="target", graph="target/model.onnx", weights=("target/weights.bin",),
        contract=contract,
        config=replace(
            CONFIG, rope_scaling=RopeScaling("linear", 2.0), layers=(LayerConfig(16, 1e4),)
        ),
        context=64, tensor_formats={"embed_tokens.weight": "q4_1"},
    )  # fmt: skip
    manifest = BundleManifest(
        schema_version=2, name="tiny", licence=None, edgedec_version="0.1.0",
        device_target="cpu", quantization="keep", models={"target": entry},
        files={
            name: FileEntry(len(content), hashlib.sha256(content).hexdigest())
            for name, content in files.items()
        },
        stop_token_ids=(2,), opening_token_ids=(1,),
        template_variables={"bos_token": "<s>"}, defaults={"method": "plain"},
        verification={"max_abs_error": 0.25},
    )  # fmt: skip
    return readers.SEPARATOR.join([json.dumps(manifest.to_dict()).encode(), settings])


def graph() -> bytes:
    """Returns a graph with external data in many places."""

    def external(name: str) -> TensorProto:
        tensor = numpy_helper.from_array(np.zeros(3, np.float32), name)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("offset", "0"), ("location", f"{name}.bin"), ("length", "12")):
            tensor.external_data.add(key=key, value=value)
        return tensor

    inner = helper.make_graph([], "i", [], [], [external("inner")])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=external("constant")),
        helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner),
    ]
    outer = helper.make_graph(nodes, "g", [], [], [external("w")])
    outer.sparse_initializer.add().values.CopyFrom(external("s"))
    content: bytes = helper.make_model(outer).SerializeToString()
    return content


def texts() -> bytes:
    """Returns a tokenizer with one of each part, and a chat template."""
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": 3, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
        ],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": "x+"}, "content": "y"}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": True}]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "vocab": {"H": 0, "e": 1, "He": 2}, "merges": ["H e"]},
    }  # fmt: skip
    return readers.SEPARATOR.join([json.dumps(tokenizer).encode(), TEMPLATE.encode()])


def store(n_tokens: int) -> bytes:
    """Returns a store of one long text; its checksums are mended."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "seed.ngrams")
        made = NgramStore.open(path, readers.STORE_OF, 1 << 14)
        made.add([i % 9 for i in range(n_tokens)])
        return b"\3" + path.read_bytes()


def session() -> bytes:
    """Returns the header of a session, and its rows."""
    rows = {
        "keys": {"dtype": "<f2", "shape": [1, 2, 3, 2]},
        "values": {"dtype": "|i1", "shape": [1, 2, 3, 2]},
    }
    model = {"fingerprint": "aim", "tokens": [5, 6, 7], "kv_rows": rows}
    header = {"models": {"target": model}, "payload_sha256": "0" * 64}
    return json.dumps(header).encode() + readers.SEPARATOR + bytes(2 * readers.PAGE)


def seeds() -> dict[str, dict[str, bytes]]:
    """Returns whole inputs by reader and name."""
    whole = session()
    header, _, rows = whole.partition(readers.SEPARATOR)
    return {
        "gguf": {
            f"{family}-{kind}": gguf_file(family, kind)
            for family, kind in (("llama", "F32"), ("llama", "Q4_0"), ("qwen2", "Q8_0"))
        },
        "safetensors": {
            "float32": safetensors_folder(torch.float32),
            "float16": safetensors_folder(torch.float16),
            "fp8": safetensors_folder(torch.float32, as_fp8),
            "gptq": safetensors_folder(torch.float16, partial(as_words, is_awq=False), **GPTQ),
            "awq": safetensors_folder(torch.float16, partial(as_words, is_awq=True), **AWQ),
        },
        "bundle": {"panels": bundle(True), "rows": bundle(False)},
        "graph": {"external": graph()},
        "texts": {"bpe": texts()},
        "store": {"short": store(20), "blocks": store(1100)},
        "session": {"parts": whole, "file": readers._session_of(header, rows)},
    }  # fmt: skip


if __name__ == "__main__":
    for reader, inputs in seeds().items():
        for name, content in inputs.items():
            path = Path(sys.argv[1], reader, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    assert weight_shapes(CONFIG)
    assert struct.calcsize("<8sII32s") == 48
