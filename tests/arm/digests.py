"""Prints SHA-256 digests of what the kernels in force compute: equal digests, equal bits.

    python digests.py kernels          each operator, matrices of every format
    python digests.py logits BUNDLE    logits of a whole model: prefill, token tree, decode

A program of its own because ``EDGEDEC_ISA`` and the processor are those of a process.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import edgedec
from edgedec.kernels import cpu, embed_op
from edgedec.models.quant import FORMATS, PlainTensor, QuantFormat, ScaleKind
from edgedec.runtime.sequences.token_tree import TokenTree

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "doors"))
import attention_op
import linear_op
import row_stats_op

Float32 = npt.NDArray[np.float32]

PROMPT = tuple(range(1000, 13000, 997))
TREE = TokenTree(tokens=(504, 2988, 451, 1962, 260), parents=(-1, 0, 0, 2, -1))
PATH = (0, 2, 3)
"""A way down `TREE`: keeping it moves rows of the KV cache."""


def sha256(array: npt.NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def numbers(rng: np.random.Generator, *shape: int) -> Float32:
    """Returns floats in [-1, 1), from integers: the other distributions may round by machine."""
    return (rng.integers(-(2**20), 2**20, shape) / 2.0**20).astype(np.float32)


def plain_matrix(fmt: QuantFormat, n: int, k: int, rng: np.random.Generator) -> PlainTensor:
    """Returns weights of size about 1 in format ``fmt``."""
    if fmt.is_float:
        values = numbers(rng, n, k)
        if fmt.name == "bf16":
            return PlainTensor(fmt, (values.view(np.uint32) >> 16).astype(np.uint16))
        return PlainTensor(fmt, values.astype({"f32": np.float32, "f16": np.float16}[fmt.name]))
    codes = rng.integers(0, 1 << fmt.bits, (n, k), dtype=np.uint8)
    is_two_level = fmt.kind in (ScaleKind.TWO, ScaleKind.TWO_MIN)
    groups = (n, k // 256 if is_two_level else k // 32)
    step = 2.0 ** (1 - fmt.bits - (6 if is_two_level else 0))
    scale = (step * numbers(rng, *groups)).astype(np.float16)
    minimum = numbers(rng, *groups).astype(np.float16)
    match fmt.kind:
        case ScaleKind.SINGLE:
            return PlainTensor(fmt, codes, scale)
        case ScaleKind.ONE_MIN:
            return PlainTensor(fmt, codes, scale, minimum)
        case ScaleKind.TWO_MIN:
            sub = rng.integers(0, 64, (2, n, k // 32), dtype=np.uint8)
            return PlainTensor(fmt, codes, scale, minimum / np.float16(32), sub[0], sub[1])
        case _:
            sub_scale = rng.integers(-128, 128, (n, k // 16), dtype=np.int8)
            return PlainTensor(fmt, codes, scale, sub_scale=sub_scale)


def matrix_digests(fmt: QuantFormat, rng: np.random.Generator) -> dict[str, str]:
    """Returns the digests of packing, embedding and multiplying a matrix of one format."""
    n, k = 35, 512
    plain = plain_matrix(fmt, n, k, rng)
    packed = cpu.pack(
        fmt.index, plain.codes, plain.scale, plain.minimum, plain.sub_scale, plain.sub_minimum
    )
    matrix = cpu.PackedMatrix(packed, fmt.index, n, k, numbers(rng, n))
    gates = [cpu.PackedMatrix(packed, fmt.index, n, k)] * 2
    x = numbers(rng, 21, k) * np.ldexp(1.0, rng.integers(-9, 9, (21, 1))).astype(np.float32)
    norm_weight, residual = numbers(rng, k), numbers(rng, 21, n)
    return {
        "pack": sha256(packed),
        "embed": sha256(embed_op.unpack_rows(matrix, 0, n)),
        "linear": sha256(
            linear_op.linear(
                x, [matrix], norm_weight=norm_weight, epsilon=1e-5, residual=residual, n_threads=2
            )
        ),
        "gate": sha256(linear_op.linear(x, gates, gate=True)),
    }


def attention_digests(rng: np.random.Generator) -> dict[str, str]:
    """Returns the digests of attention over a prefix and a tree, and of the KV cache afterwards."""
    n_heads, n_kv_heads, d, capacity, past = 6, 2, 24, 64, 37
    qkv = 4 * numbers(rng, len(TREE), (n_heads + 2 * n_kv_heads) * d)
    positions = past + np.array(TREE.depths, np.int64)
    parents = np.array(TREE.parents, np.int64)
    rope = numbers(rng, capacity, d // 2), numbers(rng, capacity, d // 2)
    keys = numbers(rng, n_kv_heads, capacity // 16, d, 16).astype(np.float16)
    values = numbers(rng, n_kv_heads, capacity, d).astype(np.float16)
    y = attention_op.attention(qkv, positions, parents, past, rope, (keys, values), n_threads=2)
    digests = {"attention": sha256(y), "keys": sha256(keys), "values": sha256(values)}
    prefix = 4 * numbers(rng, past, qkv.shape[1])
    for name, kv_format in {"int8": 1, "k5v4": 2}.items():
        keys, values = (
            np.zeros((n_kv_heads, capacity // 16, nbytes), np.uint8)
            for nbytes in attention_op.kv_block_nbytes(d, kv_format)
        )
        options = {"kv_format": kv_format, "n_threads": 2}
        before = np.arange(past)
        attention_op.attention(prefix, before, before - 1, 0, rope, (keys, values), **options)
        y = attention_op.attention(qkv, positions, parents, past, rope, (keys, values), **options)
        arrays = {"attention": y, "keys": keys, "values": values}
        digests |= {f"{name} {part}": sha256(array) for part, array in arrays.items()}
    return digests


def row_stats_digests(rng: np.random.Generator) -> dict[str, str]:
    """Returns the digests of the statistics of rows longer than one block."""
    names = ("argmax", "log_sum_exp", "entropy", "top_ids", "top_logits")
    values = row_stats_op.row_stats(16 * numbers(rng, 3, 9001), n_threads=2)
    return {f"stats {name}": sha256(value) for name, value in zip(names, values, strict=True)}


def kernel_digests() -> dict[str, str]:
    """Returns a digest for each operator and format."""
    rng = np.random.default_rng(20261121)
    digests = attention_digests(rng) | row_stats_digests(rng)
    for name, fmt in FORMATS.items():
        digests |= {f"{op} {name}": value for op, value in matrix_digests(fmt, rng).items()}
    return digests


def logits_digests(bundle: str) -> dict[str, str]:
    """Returns a digest of the logits of every row, for each kind of pass."""
    digests = {}
    with edgedec.load(bundle, edgedec.EngineOptions(threads=2)) as engine:
        sequence = engine.new_sequence()
        passes = (
            ("prefill", TokenTree.chain(PROMPT), range(len(PROMPT))),
            ("tree", TREE, PATH),
            ("decode", TokenTree.chain([PROMPT[0]]), (0,)),
        )
        for name, tree, path in passes:
            rows = sequence.forward(tree, range(len(tree)))
            digests[name] = sha256(rows.logits)
            sequence.commit(path)
    return digests


def main() -> None:
    what, *arguments = sys.argv[1:]
    digests = logits_digests(*arguments) if what == "logits" else kernel_digests()
    print(json.dumps({"isa": cpu.active_isa(), "digests": digests}))


if __name__ == "__main__":
    main()
