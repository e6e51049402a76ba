"""Operators in graphs that are wrong: an error or an array, and no fault of memory.

    tools/sanitize/run.sh .venv/bin/python tools/fuzz/wrong_nodes.py --tries 1000000 --seconds 500

makes right nodes of random sizes, edits most of them, and runs each in ONNX Runtime. Called again
it goes on. A fault lies among the 40 tries after those that build/fuzz counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from kernel_shapes import N_OF_A_PIECE, matrix, random_cache, random_formats, random_scoring, sizes
from pieces import run_tries

from edgedec.kernels import library

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/kernels"))
from op_node import ERRORS, TYPES, Node

Array = npt.NDArray[Any]
ODD_INTEGERS = (
    *(0, 1, 2, 3, 7, 16, 256, 2**16, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1),
    *(-1, -2, -(2**31), -(2**63)),
)
ODD_FLOATS = (0.0, -1.0, 1e-45, 1e30, 3e38, np.nan, np.inf, -np.inf)
WRITTEN = {"k_cache", "v_cache"}
"""Inputs that an operator writes in place."""


def floats(rng: np.random.Generator, *shape: int) -> Array:
    """Returns random float32."""
    return rng.standard_normal(shape).astype(np.float32)


def linear(rng: np.random.Generator) -> Node:
    """One to three matrices, or a gate."""
    is_gate = bool(rng.random() < 0.3)
    formats = random_formats(rng, 2 if is_gate else int(rng.integers(1, 4)))
    n, k = sizes(rng, *formats)
    each = [n, n] if is_gate else [n, *(sizes(rng, *formats)[0] for _ in formats[1:])]
    rows, n_out = int(rng.integers(0, 9)), n if is_gate else sum(each)
    stored, names = {"norm_weight": floats(rng, k)}, ["x", "norm_weight", ""]
    feeds = {"x": floats(rng, 1, rows, k)}
    if not is_gate:
        names[2], feeds["residual"] = "residual", floats(rng, 1, rows, n_out)
    for i, fmt in enumerate(formats):
        packed = matrix(rng, fmt, each[i], k, may_have_bias=not is_gate)
        stored[f"w{i}"] = packed.data
        names += [f"w{i}", "" if packed.bias is None else f"b{i}"]
        if packed.bias is not None:
            stored[f"b{i}"] = packed.bias
    attributes = {
        "formats": [fmt.index for fmt in formats], "n": each,
        "k": k, "epsilon": 1e-5, "gate": int(is_gate),
    }  # fmt: skip
    return Node("Linear", names, feeds, stored, attributes)


def embed(rng: np.random.Generator) -> Node:
    """Rows of a table."""
    (fmt,) = random_formats(rng, 1)
    n, k = sizes(rng, fmt)
    ids = rng.integers(0, n, (1, int(rng.integers(0, 9))))
    attributes = {"format": fmt.index, "n": n, "k": k}
    return Node(
        "Embed", ["ids", "table"], {"ids": ids}, {"table": matrix(rng, fmt, n, k).data}, attributes
    )


def experts(rng: np.random.Generator) -> Node:
    """A mixture of one to four experts."""
    formats = random_formats(rng, 3)
    (_, n), (_, k) = sizes(rng, *formats), sizes(rng, *formats)
    n_experts, rows = int(rng.integers(1, 5)), int(rng.integers(0, 9))
    feeds = {name: floats(rng, 1, rows, k) for name in ("x", "residual")}
    feeds["router"] = floats(rng, 1, rows, n_experts)
    stored = {"norm_weight": floats(rng, k)}
    shapes = (n, k), (n, k), (k, n)
    for name, fmt, shape in zip(("gate", "up", "down"), formats, shapes, strict=True):
        stored[name] = np.stack([matrix(rng, fmt, *shape).data for _ in range(n_experts)])
    attributes = {
        "formats": [fmt.index for fmt in formats], "k": k, "n": n, "n_experts": n_experts,
        "n_used": int(rng.integers(1, n_experts + 1)), "normed": int(rng.integers(2)),
        "epsilon": 0.0,
    }  # fmt: skip
    names = ["x", "norm_weight", "residual", "router", "gate", "up", "down"]
    return Node("Experts", names, feeds, stored, attributes)


def attention(rng: np.random.Generator) -> Node:
    """A random tree after a random number of rows, in one of two layers."""
    n_kv_heads, d, blocks = int(rng.integers(1, 3)), 2 * int(rng.integers(1, 40)), 2
    n_heads, capacity = n_kv_heads * int(rng.integers(1, 4)), 16 * blocks
    nodes = int(rng.integers(1, capacity))
    rows, scoring = int(rng.integers(0, nodes + 1)), random_scoring(rng, capacity - nodes)
    past = int(rng.integers(0, (90 if scoring.window else capacity - nodes) + 1))
    angles = np.outer(np.arange(64), 0.7 ** np.arange(d // 2)).astype(np.float32)
    kv_format = int(rng.integers(0, 3))
    layers = [random_cache(rng, kv_format, n_kv_heads, capacity, d)]
    layers.append(tuple(np.flip(cache, 1).copy() for cache in layers[0]))
    feeds = {
        "qkv": floats(rng, 1, rows, (n_heads + 2 * n_kv_heads) * d),
        "position_ids": rng.integers(0, len(angles), (1, rows)),
        "parents": np.array([[rng.integers(-1, i) for i in range(nodes)]], np.int64),
        "sequences": np.array([[past, rows, nodes, 0, blocks]]),
        "k_cache": np.stack([layer[0] for layer in layers]),
        "v_cache": np.stack([layer[1] for layer in layers]),
    }
    attributes = {
        "layer": int(rng.integers(2)), "n_heads": n_heads, "n_kv_heads": n_kv_heads,
        "head_size": d, "kv_format": kv_format,
        "scale": float(scoring.scale), "softcap": float(scoring.softcap), "window": scoring.window,
    }  # fmt: skip
    names = ["qkv", "position_ids", "parents", "sequences", "cos", "sin", "k_cache", "v_cache"]
    stored = {"cos": np.cos(angles), "sin": np.sin(angles)}
    return Node("Attention", names, feeds, stored, attributes)


def head_norm(rng: np.random.Generator) -> Node:
    """Norms of the heads of queries and keys."""
    n_kv_heads, n_heads, d = (int(rng.integers(1, most)) for most in (4, 9, 80))
    qkv = floats(rng, 1, int(rng.integers(0, 9)), (n_heads + 2 * n_kv_heads) * d)
    stored = {"q_weight": floats(rng, d), "k_weight": floats(rng, d)}
    attributes = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "epsilon": 1e-6}
    return Node("HeadNorm", ["qkv", *stored], {"qkv": qkv}, stored, attributes)


def row_stats(rng: np.random.Generator) -> Node:
    """Statistics of logits."""
    logits = floats(rng, 1, int(rng.integers(0, 6)), int(rng.integers(1, 300)))
    return Node("RowStats", ["logits"], {"logits": logits}, {}, {})


NODES = (linear, embed, experts, attention, head_norm, row_stats)


def one_of(rng: np.random.Generator, values: Any) -> Any:
    """Returns a random one of ``values``, as it is."""
    values = list(values)
    return values[rng.integers(len(values))]


def edit_attribute(node: Node, rng: np.random.Generator) -> None:
    """Leaves an attribute out or gives it an odd value; or names a gate."""
    odd = (
        int(one_of(rng, ODD_INTEGERS)),
        float(one_of(rng, ODD_FLOATS)),
        [int(one_of(rng, ODD_INTEGERS)) for _ in range(rng.integers(1, 5))],
    )
    name = one_of(rng, [*node.attributes, "gate_index"])
    value = node.attributes.get(name)
    if isinstance(value, list) and rng.random() < 0.7:
        value[rng.integers(len(value))] = odd[0]
    elif isinstance(value, int) and rng.random() < 0.7:
        near = (value - 1, value + 1, 2 * value)
        node.attributes[name] = one_of(rng, [n for n in near if -(2**63) <= n < 2**63] + [odd[0]])
    else:
        node.attributes[name] = one_of(rng, (None, "text", *odd))


def edit_input(node: Node, rng: np.random.Generator) -> None:
    """Changes shape, type or values of an input."""
    values = one_of(rng, [part for part in (node.feeds, node.constants) if part])
    name = one_of(rng, values)
    edit = one_of(rng, (reshaped, reshaped, retyped, with_odd_values, with_odd_values))
    with np.errstate(all="ignore"):
        values[name] = np.ascontiguousarray(edit(values[name], rng))


def reshaped(array: Array, rng: np.random.Generator) -> Array:
    """Returns it with an axis more or less, or with another size."""
    axis = int(rng.integers(max(1, array.ndim)))
    if rng.random() < 0.3 or not array.ndim:
        return np.expand_dims(array, axis) if rng.random() < 0.5 else array.reshape(-1)
    size = one_of(rng, (0, 1, array.shape[axis] - 1, array.shape[axis] + 1, 2 * array.shape[axis]))
    return np.take(array, range(size), axis, mode="wrap") if array.size else array.reshape(-1)


def retyped(array: Array, rng: np.random.Generator) -> Array:
    """Returns it as elements of another type."""
    return array.astype(one_of(rng, TYPES))


def with_odd_values(array: Array, rng: np.random.Generator) -> Array:
    """Returns it with some odd values, bytes at random."""
    if array.dtype == np.uint8:
        return rng.integers(0, 256, array.shape, np.uint8)
    odd = ODD_INTEGERS if array.dtype == np.int64 else ODD_FLOATS
    where = rng.random(array.shape) < one_of(rng, (0.05, 0.5, 1.0))
    return np.where(where, np.array(one_of(rng, odd), array.dtype), array)


def edit_names(node: Node, rng: np.random.Generator) -> None:
    """Leaves an input out, exchanges two, repeats one, or adds gates."""
    first, second = (int(i) for i in rng.integers(0, len(node.names), 2))
    edit = one_of(rng, ("leave out", "exchange", "repeat", "gates"))
    if edit == "leave out":
        node.names[first] = ""
    elif edit == "exchange":
        node.names[first], node.names[second] = node.names[second], node.names[first]
    elif edit == "repeat":
        node.names[first] = node.names[second]
    else:
        port = {"Linear": 9, "Experts": 7, "Attention": 8}.get(node.op, 1)
        node.names += [""] * (port - len(node.names)) + ["layer_gates"]
        node.feeds["layer_gates"] = rng.integers(0, 2, int(rng.integers(0, 4)))
        node.attributes["gate_index"] = int(rng.integers(-1, 4))


def edit_place(node: Node, rng: np.random.Generator) -> None:
    """Makes an input a constant, or all constants inputs."""
    if node.constants:
        node.feed_constants()
    else:
        name = one_of(rng, node.feeds)
        node.constants[name] = node.feeds.pop(name)


EDITS: tuple[Callable[[Node, np.random.Generator], None], ...] = (
    edit_attribute, edit_input, edit_input, edit_names, edit_place,
)  # fmt: skip


def try_one(number: int) -> bool:
    """Runs a random node, another for each ``number``; returns whether it was refused."""
    rng = np.random.default_rng(number)
    node = one_of(rng, NODES)(rng)
    n_edits = int(rng.integers(0, 4))
    for _ in range(n_edits):
        one_of(rng, EDITS)(node, rng)
    before = {name: value.copy() for name, value in node.feeds.items()}
    try:
        node.run(n_threads=int(rng.integers(1, 3)))
    except ERRORS:
        if not n_edits:
            raise
        return True
    finally:
        for name, value in before.items():
            is_left = name in WRITTEN or value.tobytes() == node.feeds[name].tobytes()
            assert is_left, f"{number}: {name} was written"
    return False


def piece(first: int) -> int:
    """Makes some tries."""
    for number in range(first, first + N_OF_A_PIECE):
        try_one(number)
    return N_OF_A_PIECE


if __name__ == "__main__":
    name = f"wrong_nodes_of_{library.library_path().parent.name}"
    sys.exit(run_tries(__doc__, name, 1_000_000, piece))
