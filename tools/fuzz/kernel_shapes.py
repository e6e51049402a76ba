"""Kernels on random shapes, formats and trees: every instruction set gives the scalar one's bits.

    tools/sanitize/run.sh .venv/bin/python tools/fuzz/kernel_shapes.py --tries 100000 --seconds 500

runs them under sanitizers; run.sh also looks for races of threads, and at ARM's kernels. Without
the first word it is the installed library. `--first 100000` goes on where another machine stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pieces import run_tries

from edgedec.kernels import cpu, embed_op, library
from edgedec.models.quant import FORMATS, PlainTensor, QuantFormat, ScaleKind

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.doors import attention_op, experts_op, head_norm_op, linear_op, row_stats_op

Array = npt.NDArray[Any]
GUARD, N_GUARDS = 0xA5, 256
N_OF_A_PIECE = 40
N_POSITIONS = 512


def guarded(shape: tuple[int, ...]) -> tuple[Array, Callable[[], None]]:
    """Returns a float32 array between guard bytes, and what raises unless those are whole."""
    n_bytes = 4 * int(np.prod(shape))
    whole = np.full(n_bytes + 2 * N_GUARDS, GUARD, np.uint8)
    inside = whole[N_GUARDS : N_GUARDS + n_bytes].view(np.float32).reshape(shape)

    def check() -> None:
        assert (whole[:N_GUARDS] == GUARD).all()
        assert (whole[N_GUARDS + n_bytes :] == GUARD).all()

    return inside, check


def every_isa(call: Callable[[str, Array | None, int], Any], shape: tuple[int, ...]) -> None:
    """Raises unless ``call`` gives the bits of the scalar kernels, with any number of threads."""
    expected = call("scalar", None, 1)
    for isa in cpu.available_isas():
        for n_threads in (1, 2):
            out, check = guarded(shape)
            got = call(isa, out, n_threads)
            check()
            for result, other in zip(got, expected, strict=True):
                is_nan = np.isnan(other) if other.dtype.kind == "f" else np.zeros(1, bool)
                assert np.array_equal(np.isnan(result), is_nan) or other.dtype.kind != "f"
                assert np.array_equal(np.where(is_nan, 0, result), np.where(is_nan, 0, other))


def matrix(
    rng: np.random.Generator, fmt: QuantFormat, n: int, k: int, may_have_bias: bool = False
) -> cpu.PackedMatrix:
    """Returns a packed random matrix, now and then with a bias."""
    plain = random_plain(rng, fmt, n, k)
    parts = (getattr(plain, field.name) for field in fields(plain)[1:])
    bias = None
    if may_have_bias and rng.random() < 0.3:
        bias = rng.standard_normal(n).astype(np.float32)
    return cpu.PackedMatrix(cpu.pack(fmt.index, *parts), fmt.index, n, k, bias)


def random_plain(rng: np.random.Generator, fmt: QuantFormat, n: int, k: int) -> PlainTensor:
    """Returns random codes with finite scales."""
    if fmt.is_float:
        values = rng.standard_normal((n, k)).astype(np.float32)
        if fmt.name == "bf16":
            return PlainTensor(fmt, (values.view(np.uint32) >> 16).astype(np.uint16))
        return PlainTensor(fmt, values.astype({"f32": np.float32, "f16": np.float16}[fmt.name]))
    is_two_level = fmt.kind in (ScaleKind.TWO, ScaleKind.TWO_MIN)
    outer = (n, k // 256 if is_two_level else -(-k // 32))
    parts: dict[str, Array] = {"scale": rng.uniform(-0.1, 0.1, outer).astype(np.float16)}
    if fmt.kind in (ScaleKind.ONE_MIN, ScaleKind.TWO_MIN):
        parts["minimum"] = rng.uniform(-0.1, 0.1, outer).astype(np.float16)
    if fmt.kind is ScaleKind.TWO_MIN:
        for name in ("sub_scale", "sub_minimum"):
            parts[name] = rng.integers(0, 64, (n, k // 32), np.uint8)
    if fmt.kind is ScaleKind.TWO:
        parts["sub_scale"] = rng.integers(-128, 128, (n, k // 16), np.int8)
    return PlainTensor(fmt, rng.integers(0, 1 << fmt.bits, (n, k), np.uint8), **parts)


def random_formats(rng: np.random.Generator, n: int) -> list[QuantFormat]:
    """Returns ``n`` formats."""
    return [list(FORMATS.values())[i] for i in rng.integers(0, len(FORMATS), n)]


def sizes(rng: np.random.Generator, *formats: QuantFormat) -> tuple[int, int]:
    """Returns rows and columns of a matrix in any of ``formats``."""
    n = int(rng.choice([1, 7, 15, 16, 17, 33, rng.integers(1, 90), rng.integers(1, 600)]))
    k = int(rng.choice([1, 31, 32, 33, 256, 288, rng.integers(1, 700)]))
    is_two_level = any(fmt.kind in (ScaleKind.TWO, ScaleKind.TWO_MIN) for fmt in formats)
    return n, 256 * int(rng.integers(1, 4)) if is_two_level else k


def some_rows(rng: np.random.Generator) -> int:
    """Returns a number of rows: of decoding, now and then of a prompt, which is cut otherwise."""
    return int(rng.integers(0, rng.choice([20, 160], p=[0.9, 0.1])))


def try_linear(rng: np.random.Generator) -> None:
    """One product of one to three matrices, or a gate, with or without norm and residual."""
    is_gate = bool(rng.random() < 0.3)
    formats = random_formats(rng, 2 if is_gate else int(rng.integers(1, 4)))
    n, k = sizes(rng, *formats)
    heights = [n] * 2 if is_gate else [sizes(rng, fmt)[0] for fmt in formats]
    matrices = [
        matrix(rng, fmt, n, k, not is_gate) for fmt, n in zip(formats, heights, strict=True)
    ]
    rows = some_rows(rng)
    x = (rng.standard_normal((rows, k)) * 10.0 ** rng.uniform(-4, 4, (rows, 1))).astype(np.float32)
    n_out = n if is_gate else sum(heights)
    options: dict[str, Any] = {"gate": is_gate}
    if rng.random() < 0.5:
        options |= {"norm_weight": rng.standard_normal(k).astype(np.float32), "epsilon": 1e-5}
    if rng.random() < 0.5 and not is_gate:
        options["residual"] = rng.standard_normal((rows, n_out)).astype(np.float32)

    def call(isa: str, out: Array | None, n_threads: int) -> Any:
        return [linear_op.linear(x, matrices, out=out, isa=isa, n_threads=n_threads, **options)]

    every_isa(call, (rows, n_out))


def try_embed(rng: np.random.Generator) -> None:
    """Rows of a table."""
    (fmt,) = random_formats(rng, 1)
    n, k = sizes(rng, fmt)
    table, ids = matrix(rng, fmt, n, k), rng.integers(0, n, rng.integers(0, 12))

    def call(isa: str, out: Array | None, n_threads: int) -> Any:
        return [embed_op.embed(ids, table, out=out, isa=isa, n_threads=n_threads)]

    every_isa(call, (len(ids), k))


def try_attention(rng: np.random.Generator) -> None:
    """A random tree after a random number of rows, some of its nodes known."""
    n_kv_heads, d = int(rng.integers(1, 4)), 2 * int(rng.integers(1, 69))
    n_heads, capacity = n_kv_heads * int(rng.integers(1, 6)), 16 * int(rng.integers(2, 40))
    nodes = int(rng.integers(1, min(capacity, rng.choice([10, 40, 300]))))
    rows, scoring = int(rng.integers(1, nodes + 1)), random_scoring(rng, capacity - nodes)
    past = int(rng.integers(0, (3 * capacity if scoring.window else capacity - nodes) + 1))
    is_chain = rng.random() < 0.3
    parents = np.array([i - 1 if is_chain else rng.integers(-1, i) for i in range(nodes)], np.int64)
    positions = rng.integers(0, N_POSITIONS, rows)
    qkv = rng.standard_normal((rows, (n_heads + 2 * n_kv_heads) * d)).astype(np.float32)
    angles = np.outer(np.arange(N_POSITIONS), 0.7 ** np.arange(d // 2))
    rope = (np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
    kv_format = int(rng.integers(0, 3))
    cache = random_cache(rng, kv_format, n_kv_heads, capacity, d)
    parts: dict[str, Any] = {"scoring": scoring, "kv_format": kv_format}
    if past + nodes <= N_POSITIONS and rng.random() < 0.5:  # scores count with a row's own place
        positions = past + depths(parents)[nodes - rows :]
        parts["key_offsets"] = rng.standard_normal((n_kv_heads, d)).astype(np.float32)

    def call(isa: str, out: Array | None, n_threads: int) -> Any:
        caches = (cache[0].copy(), cache[1].copy())
        options = {**parts, "out": out, "isa": isa, "n_threads": n_threads}
        return [
            attention_op.attention(qkv, positions, parents, past, rope, caches, **options),
            *caches,
        ]

    every_isa(call, (rows, n_heads * d))


def random_scoring(rng: np.random.Generator, n_seen: int) -> attention_op.Scoring:
    """Returns how to weigh, now and then with a window of which ``n_seen`` rows lie behind."""
    return attention_op.Scoring(
        scale=rng.choice([0.0, rng.uniform(0.01, 1.0)]),
        softcap=rng.choice([0.0, rng.uniform(1.0, 50.0)]),
        window=int(rng.choice([0, rng.integers(1, n_seen + 2)])),
    )


def depths(parents: Array) -> Array:
    """Returns how many ancestors each node of a tree has."""
    result = np.zeros(len(parents), np.int64)
    for i, parent in enumerate(parents):
        result[i] = 0 if parent < 0 else result[parent] + 1
    return result


def random_cache(
    rng: np.random.Generator, kv_format: int, n_heads: int, capacity: int, d: int
) -> tuple[Array, Array]:
    """Returns keys and values of one layer: float16, or bytes of the format with that number."""
    if kv_format == 0:
        keys = rng.standard_normal((n_heads, capacity // 16, d, 16)).astype(np.float16)
        return keys, rng.standard_normal((n_heads, capacity, d)).astype(np.float16)
    panels = []
    for nbytes in attention_op.kv_block_nbytes(d, kv_format):
        blocks = rng.integers(0, 256, (n_heads, capacity // 16, nbytes), np.uint8)
        scales = rng.uniform(0, 0.1, (*blocks.shape[:2], 16)).astype(np.float16)
        blocks[..., :32] = scales.view(np.uint8)
        panels.append(blocks)
    return panels[0], panels[1]


def try_row_stats(rng: np.random.Generator) -> None:
    """Statistics of logits, now and then with what is no number."""
    rows, n_ids = int(rng.integers(0, 6)), int(rng.integers(1, rng.choice([600, 20000])))
    logits = (rng.standard_normal((rows, n_ids)) * 10).astype(np.float32)
    if rng.random() < 0.3:
        odd = rng.random(logits.shape) < 0.05
        logits[odd] = rng.choice([np.nan, np.inf, -np.inf, 0.0])

    def call(isa: str, out: Array | None, n_threads: int) -> Any:
        return row_stats_op.row_stats(logits, isa=isa, n_threads=n_threads)

    every_isa(call, (0,))


def try_experts(rng: np.random.Generator) -> None:
    """A mixture of one to eight experts, now and then with scores that are no numbers."""
    formats = random_formats(rng, 3)
    inner, k = (sizes(rng, *formats)[1] for _ in range(2))
    n_experts = int(rng.integers(1, 9))
    rows, n_used = some_rows(rng), int(rng.integers(1, n_experts + 1))
    shapes = ((inner, k), (inner, k), (k, inner))
    mixture = tuple(
        experts_op.PackedExperts(
            np.stack([matrix(rng, fmt, *shape).data for _ in range(n_experts)]), fmt.index, *shape
        )
        for fmt, shape in zip(formats, shapes, strict=True)
    )
    x = (rng.standard_normal((rows, k)) * 10.0 ** rng.uniform(-4, 4, (rows, 1))).astype(np.float32)
    router = rng.standard_normal((rows, n_experts)).astype(np.float32)
    if rng.random() < 0.1:
        router[rng.random(router.shape) < 0.2] = rng.choice([np.nan, np.inf, -np.inf])
    options: dict[str, Any] = {"is_normed": bool(rng.random() < 0.5)}
    if rng.random() < 0.5:
        options |= {"norm_weight": rng.standard_normal(k).astype(np.float32), "residual": x}

    def call(isa: str, out: Array | None, n_threads: int) -> Any:
        settings: dict[str, Any] = {"out": out, "isa": isa, "n_threads": n_threads}
        return [experts_op.experts(x, router, mixture, n_used, **options, **settings)]

    every_isa(call, (rows, k))


def try_head_norm(rng: np.random.Generator) -> None:
    """Norms of the heads of queries and keys."""
    n_kv_heads, n_heads, d = (int(rng.integers(1, most)) for most in (4, 9, 140))
    qkv = rng.standard_normal((some_rows(rng), (n_heads + 2 * n_kv_heads) * d))
    qkv = (qkv * 10.0 ** rng.uniform(-4, 4, (len(qkv), 1))).astype(np.float32)
    weights = (
        rng.standard_normal(d).astype(np.float32),
        rng.standard_normal(d).astype(np.float32),
    )

    def call(isa: str, out: Array | None, n_threads: int) -> Any:
        settings: dict[str, Any] = {"out": out, "isa": isa, "n_threads": n_threads}
        return [head_norm_op.head_norm(qkv, weights, n_kv_heads, 1e-6, **settings)]

    every_isa(call, qkv.shape)


TRIES = (try_linear, try_attention, try_embed, try_row_stats, try_experts, try_head_norm)


def try_one(number: int) -> None:
    """One random call, another for each ``number``."""
    rng = np.random.default_rng(number)
    with np.errstate(all="ignore"):
        TRIES[rng.integers(len(TRIES))](rng)


def piece(first: int) -> int:
    """Makes some tries."""
    for number in range(first, first + N_OF_A_PIECE):
        try_one(number)
    return N_OF_A_PIECE


if __name__ == "__main__":
    name = f"kernel_shapes_of_{library.library_path().parent.name}"
    sys.exit(run_tries(__doc__, name, 1_000_000, piece))
