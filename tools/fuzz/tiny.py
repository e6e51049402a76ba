"""A tiny real bundle: random weights, edgedec's own kernels, a byte-level tokenizer, ChatML."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.config import ModelConfig
from edgedec.models.families import find_family

CONTEXT = 128
_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)


Shapes = dict[str, tuple[int, ...]]


def write_gguf(path: Path, seed: int = 0) -> Path:
    """Writes a model of the family llama with random weights; returns ``path``."""
    config = ModelConfig("llama", len(_tokens()), 64, 64, 2, 2, 1, 32, CONTEXT, 1e-5)
    weights = find_family("llama").weights(config).values()
    return _write(path, seed, "llama", {weight.gguf.name: weight.shape for weight in weights})


def write_mtp_gguf(path: Path) -> Path:
    """Writes a model of Qwen3.5's family with its layer for drafting; returns ``path``.

    The first of two layers has a delta rule of two heads of 16 values, the second has attention.
    """
    shapes: Shapes = {
        "token_embd.weight": (len(_tokens()), 64), "output_norm.weight": (64,),
        "output.weight": (len(_tokens()), 64),
        "blk.0.attn_qkv.weight": (96, 64), "blk.0.attn_gate.weight": (32, 64),
        "blk.0.ssm_beta.weight": (2, 64), "blk.0.ssm_alpha.weight": (2, 64),
        "blk.0.ssm_conv1d.weight": (96, 4), "blk.0.ssm_a": (2,), "blk.0.ssm_dt.bias": (2,),
        "blk.0.ssm_norm.weight": (16,), "blk.0.ssm_out.weight": (64, 32),
    }  # fmt: skip
    for layer in (1, 2):
        for name, shape in {
            "attn_q": (128, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64),
            "attn_q_norm": (32,), "attn_k_norm": (32,),
        }.items():  # fmt: skip
            shapes[f"blk.{layer}.{name}.weight"] = shape
    for layer in range(3):
        for name in ("attn_norm", "post_attention_norm"):
            shapes[f"blk.{layer}.{name}.weight"] = (64,)
        for name in ("ffn_gate", "ffn_up", "ffn_down"):
            shapes[f"blk.{layer}.{name}.weight"] = (64, 64)
    for name in ("enorm", "hnorm", "shared_head_norm"):
        shapes[f"blk.2.nextn.{name}.weight"] = (64,)
    shapes["blk.2.nextn.eh_proj.weight"] = (64, 128)
    numbers = {
        "block_count": 3, "nextn_predict_layers": 1, "full_attention_interval": 2,
        "attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 8,
        "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 2, "ssm.time_step_rank": 2,
        "ssm.inner_size": 32,
    }  # fmt: skip
    return _write(path, 0, "qwen35", shapes, numbers)


def _write(
    path: Path, seed: int, architecture: str, shapes: Shapes, numbers: dict[str, int] | None = None
) -> Path:
    """Writes tensors of ``shapes`` and what a header has, ``numbers`` besides the usual."""
    writer, tokens = gguf.GGUFWriter(path, architecture), _tokens()
    usual = {
        "block_count": 2, "context_length": CONTEXT, "embedding_length": 64,
        "feed_forward_length": 64, "attention.head_count": 2, "attention.head_count_kv": 1,
    }  # fmt: skip
    for key, value in {**usual, **(numbers or {})}.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", "smollm")
    writer.add_array("tokenizer.ggml.tokens", tokens)
    writer.add_array("tokenizer.ggml.token_type", [3] * 3 + [1] * (len(tokens) - 3))
    writer.add_array("tokenizer.ggml.merges", ["a b"])
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    writer.add_string("tokenizer.chat_template", _CHATML)
    rng = np.random.default_rng(seed)
    for name, shape in shapes.items():
        _add_tensor(writer, name, rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensor(writer: gguf.GGUFWriter, name: str, values: npt.NDArray[np.float32]) -> None:
    """Adds ``values``, which are those of a standard normal distribution, at a usual scale."""
    kind = gguf.GGMLQuantizationType.Q8_0
    if name.endswith("ssm_a"):
        writer.add_tensor(name, -np.exp(values))
    elif "conv1d" in name:
        writer.add_tensor(name, values)
    elif values.ndim == 1:
        writer.add_tensor(name, 1 + 0.1 * values)
    else:
        spread = 4 if name == "output.weight" else 1
        codes = gguf.quants.quantize(spread * values / np.sqrt(values.shape[1]), kind)
        writer.add_tensor(name, codes, raw_dtype=kind)


def make_bundle(folder: Path) -> Path:
    """Exports such a model into ``folder``; returns the bundle."""
    bundle = folder / "tiny.edgedec"
    export(ExportConfig(source=str(write_gguf(folder / "tiny.gguf")), destination=bundle))
    return bundle


def _tokens() -> list[str]:
    return [*_SPECIALS, *_byte_texts()]


def _byte_texts() -> list[str]:
    """Returns the characters that stand for the 256 bytes, and a token of two, as GPT-2 has them.

    Source: openai/gpt-2 ``src/encoder.py`` (MIT).
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (chr(256 + n) for n in range(256))
    return [*(chr(byte) if byte in plain else next(others) for byte in range(256)), "ab"]
