"""Writes a mixture of experts with random weights, to measure passes of one.

    python tools/random_moe.py moe.gguf
    edgedec export moe.gguf -o moe.edgedec

By default 0.6 G parameters in 4 bits, of which a token uses a quarter. Its tokenizer is that of
SmolLM2; its texts are noise that soon repeats itself.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.catalogue import model_file

ARCHITECTURE = "qwen3moe"
BLOCK = np.dtype([("scale", np.float16), ("codes", np.uint8, 16)])
"""32 weights as GGUF's Q4_0 keeps them."""


def random_q4(rng: np.random.Generator, *shape: int, size: float) -> npt.NDArray[np.uint8]:
    """Returns a matrix [..., n, k] of elements of about ``size``, as Q4_0."""
    *lead, k = shape
    blocks = np.empty((*lead, k // 32), BLOCK)
    blocks["scale"] = size / 4.3  # of codes 1 to 15, which stand for -7 to 7, drawn evenly
    low, high = rng.integers(1, 16, (2, *blocks.shape, 16), dtype=np.uint8)
    blocks["codes"] = low | high << 4
    return blocks.view(np.uint8).reshape(*lead, -1)


def copy_tokenizer(writer: gguf.GGUFWriter) -> int:
    """Copies SmolLM2's; returns its number of tokens."""
    fields = gguf.GGUFReader(model_file("smollm2-135m-instruct")).fields
    for name, field in fields.items():
        if name.startswith("tokenizer.") and name != "tokenizer.chat_template":
            kind = field.types[0]
            element = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, sub_type=element)
    return len(fields["tokenizer.ggml.tokens"].contents())


def write(path: Path, sizes: Any) -> None:
    """Writes the model."""
    rng = np.random.default_rng(0)
    hidden, inner, n_experts, head = sizes.hidden, sizes.inner, sizes.experts, 64
    q, kv = head * sizes.heads, head * sizes.kv_heads
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    n_tokens = copy_tokenizer(writer)
    for key, value in {
        "block_count": sizes.layers, "context_length": 4096, "embedding_length": hidden,
        "feed_forward_length": inner, "expert_feed_forward_length": inner,
        "attention.head_count": sizes.heads, "attention.head_count_kv": sizes.kv_heads,
        "attention.key_length": head, "attention.value_length": head, "vocab_size": n_tokens,
        "expert_count": n_experts, "expert_used_count": sizes.used,
    }.items():  # fmt: skip
        writer.add_uint32(f"{ARCHITECTURE}.{key}", value)
    writer.add_float32(f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32(f"{ARCHITECTURE}.rope.freq_base", 1e4)

    def add(name: str, *shape: int) -> None:
        if len(shape) == 1:
            return writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
        q4, unit = gguf.GGMLQuantizationType.Q4_0, 1 / np.sqrt(shape[-1])
        # Tokens stay apart from each other, and so do the experts they choose.
        size = 1.0 if name == "token_embd" else unit
        return writer.add_tensor(f"{name}.weight", random_q4(rng, *shape, size=size), raw_dtype=q4)

    add("token_embd", n_tokens, hidden)
    add("output", n_tokens, hidden)
    add("output_norm", hidden)
    for i in range(sizes.layers):
        for name, *shape in (
            ("attn_norm", hidden), ("attn_q", q, hidden), ("attn_k", kv, hidden),
            ("attn_v", kv, hidden), ("attn_q_norm", head), ("attn_k_norm", head),
            ("attn_output", hidden, q), ("ffn_norm", hidden),
            ("ffn_gate_exps", n_experts, inner, hidden), ("ffn_up_exps", n_experts, inner, hidden),
            ("ffn_down_exps", n_experts, hidden, inner),
        ):  # fmt: skip
            add(f"blk.{i}.{name}", *shape)
        router = 4 / np.sqrt(hidden) * rng.standard_normal((n_experts, hidden))
        writer.add_tensor(f"blk.{i}.ffn_gate_inp.weight", router.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    for name, size in {
        "hidden": 1024, "inner": 512, "layers": 12, "heads": 16, "kv_heads": 4, "experts": 32,
        "used": 4,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=size)
    sizes = parser.parse_args()
    write(sizes.path, sizes)


if __name__ == "__main__":
    main()
