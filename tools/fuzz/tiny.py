"""A tiny real bundle: random weights, edgedec's own kernels, a byte-level tokenizer, ChatML."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

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


def write_gguf(path: Path, seed: int = 0) -> Path:
    """Writes a model of the family llama with random weights; returns ``path``."""
    tokens = [*_SPECIALS, *_byte_texts()]
    config = ModelConfig("llama", len(tokens), 64, 64, 2, 2, 1, 32, CONTEXT, 1e-5)
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {
        "block_count": 2, "context_length": CONTEXT, "embedding_length": 64,
        "feed_forward_length": 64, "attention.head_count": 2, "attention.head_count_kv": 1,
    }.items():  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", "smollm")
    writer.add_array("tokenizer.ggml.tokens", tokens)
    writer.add_array("tokenizer.ggml.token_type", [3] * 3 + [1] * (len(tokens) - 3))
    writer.add_array("tokenizer.ggml.merges", ["a b"])
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    writer.add_string("tokenizer.chat_template", _CHATML)
    rng, kind = np.random.default_rng(seed), gguf.GGMLQuantizationType.Q8_0
    for name, weight in find_family("llama").weights(config).items():
        values = rng.standard_normal(weight.shape).astype(np.float32)
        if values.ndim == 1:
            writer.add_tensor(weight.gguf.name, 1 + 0.1 * values)
        else:
            spread = 4 if name == "lm_head.weight" else 1
            codes = gguf.quants.quantize(spread * values / np.sqrt(values.shape[1]), kind)
            writer.add_tensor(weight.gguf.name, codes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def make_bundle(folder: Path) -> Path:
    """Exports such a model into ``folder``; returns the bundle."""
    bundle = folder / "tiny.edgedec"
    export(ExportConfig(source=str(write_gguf(folder / "tiny.gguf")), destination=bundle))
    return bundle


def _byte_texts() -> list[str]:
    """Returns the characters that stand for the 256 bytes, and a token of two, as GPT-2 has them.

    Source: openai/gpt-2 ``src/encoder.py`` (MIT).
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (chr(256 + n) for n in range(256))
    return [*(chr(byte) if byte in plain else next(others) for byte in range(256)), "ab"]
