"""Mixtures of experts against float64 and against linear, on every ISA and inside ONNX Runtime."""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import os
import sys

import numpy as np
import pytest

from edgedec.kernels import cpu
from edgedec.models.quant import FORMATS, ScaleKind

from ..doors import experts_op, linear_op

EPSILON = 2.0**-24
N_EXPERTS, N_USED = 6, 3
MIXES = [("q4_0",) * 3, ("q4_k", "q4_k", "q6_k"), ("q4_1", "q8_0", "f16"), ("f32", "q5_0", "q5_1")]
"""Formats of gate, up and down."""


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Matrices of ``plain`` [n, k], one for each expert; as gate, up and down."""

    plain: tuple
    packed: tuple
    norm: np.ndarray

    @property
    def k(self):
        return self.packed[0].k

    def inputs(self, rng, rows):
        """Returns rows of very different size, and router scores."""
        x = rng.standard_normal((rows, self.k)) * 10.0 ** rng.uniform(-2, 2, (rows, 1))
        router = 2 * rng.standard_normal((rows, len(self.packed[0].data)))
        return x.astype(np.float32), router.astype(np.float32)

    def run(self, x, router, n_used=N_USED, **options):
        options = {"norm_weight": self.norm, "epsilon": 1e-6, "residual": x, **options}
        return experts_op.experts(x, router, self.packed, n_used, **options)


@pytest.fixture
def make_mixture(make_plain, packed, rng):
    def make(formats, k=96, inner=70, n_experts=N_EXPERTS):
        if any(FORMATS[f].kind in (ScaleKind.TWO, ScaleKind.TWO_MIN) for f in formats):
            k, inner = 256, 256
        shapes = ((inner, k), (inner, k), (k, inner))
        plain = tuple(
            [make_plain(FORMATS[f], *shape) for _ in range(n_experts)]
            for f, shape in zip(formats, shapes, strict=True)
        )
        joined = tuple(
            experts_op.PackedExperts(
                np.stack([packed(one).data for one in own]), own[0].format.index, *own[0].shape
            )
            for own in plain
        )
        return Mixture(plain, joined, rng.uniform(0.5, 1.5, k).astype(np.float32))

    return make


def routes(router, n_used, is_normed):
    """Returns the chosen experts by falling score, and their weights in float64. [rows, n_used]"""
    ids = np.argsort(-router, axis=1, kind="stable")[:, :n_used]
    weights = np.exp(router.astype(np.float64) - router.max(axis=1, keepdims=True))
    total = weights.sum(axis=1, keepdims=True)
    weights = np.take_along_axis(weights, ids, axis=1)
    return ids, weights / (weights.sum(axis=1, keepdims=True) if is_normed else total)


@pytest.mark.parametrize("is_normed", [True, False])
@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_floats_against_float64(isa, name, is_normed, make_mixture, rng):
    mixture = make_mixture((name,) * 3)
    x, router = mixture.inputs(rng, 11)
    found = mixture.run(x, router, is_normed=is_normed, isa=isa, n_threads=2)
    wide = x.astype(np.float64)
    h = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6) * mixture.norm
    gate, up, down = ([one.dequantize().astype(np.float64) for one in own] for own in mixture.plain)
    expected, bound = wide.copy(), 4 * EPSILON * np.abs(wide)
    for row, (ids, weights) in enumerate(zip(*routes(router, N_USED, is_normed), strict=True)):
        for e, weight in zip(ids, weights, strict=True):
            a, b = gate[e] @ h[row], up[e] @ h[row]
            gated = a / (1 + np.exp(-a)) * b
            expected[row] += weight * (down[e] @ gated)
            # Products of k and of inner terms, a few roundings of norm, silu, exponential and sum.
            sizes = np.abs(gate[e]) @ np.abs(h[row]), np.abs(up[e]) @ np.abs(h[row])
            error = (2 * len(h[row]) + len(gated) + 40) * EPSILON
            largest = 1.1 * (sizes[0] * np.abs(b) + np.abs(a) * sizes[1]) + np.abs(gated)
            bound[row] += error * weight * (np.abs(down[e]) @ largest)
    assert (np.abs(found - expected) <= bound).all()
    # The bound is that of the worst case, some thousand times what happens.
    shares = np.abs(expected - wide).max(axis=1, keepdims=True)
    assert np.median(np.abs(found - expected) / shares) < 16 * EPSILON


@pytest.fixture
def biases(rng):
    """Of gate, up and down of ``mixture``; some take gate and up far beyond a limit of 2."""

    def make(mixture):
        sizes = [(len(own.data), own.n) for own in mixture.packed]
        return tuple(rng.normal(0, 3, size).astype(np.float32) for size in sizes)

    return make


def test_clamped_gates_against_float64(isa, make_mixture, biases, rng):
    mixture, limit = make_mixture(("f32",) * 3), 2.0
    x, router = mixture.inputs(rng, 11)
    added = biases(mixture)
    found = mixture.run(x, router, biases=added, limit=limit, isa=isa, n_threads=2)
    wide = x.astype(np.float64)
    h = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6) * mixture.norm
    gate, up, down = ([one.dequantize().astype(np.float64) for one in own] for own in mixture.plain)
    expected, n_bounded = np.zeros_like(wide), 0
    for row, (ids, weights) in enumerate(zip(*routes(router, N_USED, True), strict=True)):
        for e, weight in zip(ids, weights, strict=True):
            a, b = gate[e] @ h[row] + added[0][e], up[e] @ h[row] + added[1][e]
            n_bounded += np.sum(a > limit) + np.sum(np.abs(b) > limit)
            a, b = np.minimum(a, limit), np.clip(b, -limit, limit)
            gated = a / (1 + np.exp(-1.702 * a)) * (b + 1)
            expected[row] += weight * (down[e] @ gated + added[2][e])
    assert n_bounded > 1000
    error = np.abs(found - wide - expected)
    assert (error <= 200 * EPSILON * (np.abs(wide) + np.abs(expected).max())).all()


@pytest.mark.parametrize("formats", MIXES, ids="-".join)
def test_clamped_rows_do_not_see_each_other(isa, formats, make_mixture, biases, rng, same_bits):
    """The same bits on every instruction set, alone and together; biases may be the only change."""
    mixture = make_mixture(formats)
    x, router = mixture.inputs(rng, 21)
    options = {"biases": biases(mixture), "limit": 7.0}
    found = mixture.run(x, router, isa=isa, n_threads=2, **options)
    assert same_bits(found, mixture.run(x, router, isa="scalar", **options))
    for row in (0, 9, 20):
        part = slice(row, row + 1)
        assert same_bits(mixture.run(x[part], router[part], isa=isa, **options), found[part])
    zeros = tuple(np.zeros_like(bias) for bias in options["biases"])
    plain = mixture.run(x, router, isa=isa)
    assert np.array_equal(mixture.run(x, router, isa=isa, biases=zeros), plain)


def test_a_bad_row_stays_bad_behind_a_limit(isa, make_mixture, rng):
    mixture = make_mixture(("f32",) * 3)
    x, router = mixture.inputs(rng, 3)
    x[1, 5] = np.nan
    found = mixture.run(x, router, isa=isa, limit=7.0)
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2]]).all()


@pytest.mark.parametrize("formats", MIXES, ids="-".join)
def test_shares_are_those_of_linear(isa, formats, make_mixture, rng):
    """What an expert makes of a row is what two products make of it; those have their own tests."""
    mixture = make_mixture(formats)
    x, router = mixture.inputs(rng, 21)
    x[4, 33] *= 300  # an outlier is prepared in two planes
    found = mixture.run(x, router, isa=isa)
    gate, up, down = (
        [cpu.PackedMatrix(data, own.format, own.n, own.k) for data in own.data]
        for own in mixture.packed
    )
    options = {"norm_weight": mixture.norm, "epsilon": 1e-6, "isa": isa}
    expected, size = x.astype(np.float64), np.abs(x).astype(np.float64)
    for row, (ids, weights) in enumerate(zip(*routes(router, N_USED, True), strict=True)):
        for e, weight in zip(ids, weights, strict=True):
            gated = linear_op.linear(x[row : row + 1], [gate[e], up[e]], gate=True, **options)
            part = weight * linear_op.linear(gated, [down[e]], isa=isa)[0].astype(np.float64)
            expected[row] += part
            size[row] += np.abs(part)
    # A weight is off by some units in the last place, a sum by one for each term.
    assert (np.abs(found - expected) <= (N_USED + 16) * EPSILON * size).all()


@pytest.mark.parametrize("rows", [1, 2, 19])
def test_same_bits_on_every_isa(simd, fmt, rows, make_mixture, rng, same_bits):
    mixture = make_mixture((fmt.name,) * 3)
    x, router = mixture.inputs(rng, rows)
    scalar = mixture.run(x, router, isa="scalar")
    assert same_bits(mixture.run(x, router, isa=simd, n_threads=2), scalar)


@pytest.mark.parametrize("formats", MIXES, ids="-".join)
def test_rows_do_not_see_each_other(isa, formats, make_mixture, rng, same_bits):
    """Batch invariance, whether rows choose alike or not: any number of rows and of threads."""
    mixture = make_mixture(formats)
    x, router = mixture.inputs(rng, 40)
    router[20:] = router[20] + np.float32(0.01) * router[20:]  # they choose alike
    x[7, 40] *= 500
    single = np.concatenate(
        [mixture.run(x[i : i + 1], router[i : i + 1], isa=isa) for i in range(len(x))]
    )
    for rows in (slice(0, 2), slice(3, 11), slice(17, 40), slice(20, 29), slice(0, 40)):
        for n_threads in (1, 2):
            found = mixture.run(x[rows], router[rows], isa=isa, n_threads=n_threads)
            assert same_bits(found, single[rows])


@pytest.mark.parametrize("n_used", [1, N_EXPERTS])
def test_one_and_all_experts(isa, n_used, make_mixture, rng, same_bits):
    mixture = make_mixture(("q8_0",) * 3)
    x, router = mixture.inputs(rng, 9)
    found = mixture.run(x, router, n_used, isa=isa)
    assert same_bits(found, mixture.run(x, router, n_used, isa="scalar"))
    kept = mixture.run(x, router, n_used, is_normed=False, isa=isa)
    assert np.allclose(found, kept, rtol=1e-4) == (n_used == N_EXPERTS)


def test_of_equal_scores_the_first_are_chosen(isa, make_mixture, rng, same_bits):
    mixture = make_mixture(("q4_0",) * 3)
    x, router = mixture.inputs(rng, 2)
    router[:] = [[1, 5, 5, 5, 0, 5], [-np.inf] * N_EXPERTS]
    first = np.where(np.arange(N_EXPERTS) < [[4], [3]], router, np.float32(-1e9))
    first[1, :3] = 0
    assert same_bits(mixture.run(x, router, isa=isa)[:1], mixture.run(x, first, isa=isa)[:1])


def test_experts_that_nobody_chose_are_not_used(isa, make_mixture, rng, same_bits):
    mixture = make_mixture(("q4_0", "f32", "q4_1"))
    x, router = mixture.inputs(rng, 12)
    router[:, [0, 4]] -= 100
    found = mixture.run(x, router, isa=isa)
    for own in mixture.packed:
        own.data[[0, 4]] = 0xFF  # scales and weights that are no numbers
    assert same_bits(mixture.run(x, router, isa=isa), found)


def test_one_bad_row_spoils_no_other(isa, make_mixture, rng, same_bits):
    mixture = make_mixture(("q4_0",) * 3)
    x, router = mixture.inputs(rng, 9)
    good = mixture.run(x, router, isa=isa)
    x[4, 17] = np.nan
    router[4] = np.nan
    router[6, 2] = np.inf
    x[6, 20] = np.inf
    with np.errstate(invalid="ignore"):
        found = mixture.run(x, router, isa=isa)
    kept = [0, 1, 2, 3, 5, 7, 8]
    assert same_bits(found[kept], good[kept])
    assert np.isnan(found[4]).any()


@pytest.mark.parametrize("formats", MIXES, ids="-".join)
def test_guard_bytes(isa, formats, make_mixture, guards, rng, same_bits):
    """Buffers at odd addresses, nothing written outside the result; it may be the residual."""
    mixture = make_mixture(formats)
    x, router = mixture.inputs(rng, 10)
    expected = mixture.run(x, router, isa=isa)
    inside = dataclasses.replace(
        mixture,
        packed=tuple(dataclasses.replace(p, data=guards.copy(p.data)) for p in mixture.packed),
        norm=guards.copy(mixture.norm),
    )
    out = guards.copy(x)
    found = inside.run(
        guards.copy(x), guards.copy(router), residual=out, out=out, isa=isa, n_threads=2
    )
    assert same_bits(found, expected)
    none = mixture.run(x, router, residual=None, isa=isa)
    assert same_bits(none, mixture.run(x, router, residual=np.zeros_like(x), isa=isa))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"n_used": 0}, "n_used is 0, expected 1 to 6"),
        ({"n_used": 7}, "n_used is 7, expected 1 to 6"),
        ({"router": np.zeros((2, 5), np.float32)}, "router: got float32"),
        ({"x": np.zeros((2, 64), np.float32)}, r"experts are .* expected \[\(6, 70, 64\)"),
    ],
)
def test_what_does_not_fit_is_refused(make_mixture, rng, changes, text):
    mixture = make_mixture(("q4_0",) * 3)
    x, router = mixture.inputs(rng, 2)
    values = {"x": x, "router": router, "n_used": N_USED, **changes}
    with pytest.raises(ValueError, match=text):
        experts_op.experts(values["x"], values["router"], mixture.packed, values["n_used"])


NAMES = ("x", "norm", "residual", "router", "gate", "up", "down")


@pytest.fixture
def node(make_mixture, rng):
    from .op_node import Node

    mixture = make_mixture(("q4_0", "q4_0", "q8_0"))
    x, router = mixture.inputs(rng, 5)
    feeds = {"x": x[None], "residual": x[None] + 1, "router": router[None]}
    stored = zip(NAMES[4:], (own.data for own in mixture.packed), strict=True)
    attributes = {
        "formats": [own.format for own in mixture.packed], "k": 96, "n": 70,
        "n_experts": N_EXPERTS, "n_used": N_USED, "normed": 0, "epsilon": 1e-6,
    }  # fmt: skip
    found = Node("Experts", NAMES, feeds, {"norm": mixture.norm, **dict(stored)}, attributes)
    found.expected = mixture.run(x, router, residual=x + 1, is_normed=False)
    return found


def test_inside_onnx_runtime(node, same_bits):
    assert same_bits(node.run(n_threads=2)[0], node.expected)
    node.feed_constants()
    assert same_bits(node.run()[0], node.expected)
    node.feeds |= {name: node.feeds[name][:, :0] for name in ("x", "residual", "router")}
    assert node.run().shape == (1, 0, 96)


def test_biases_inside_onnx_runtime(node, make_mixture, rng, same_bits):
    """Behind an absent input of layer gates; of another size they are refused."""
    from .op_node import refuses

    node.names += ["", "gate_bias", "up_bias", "down_bias"]
    biases = [rng.standard_normal(N_EXPERTS * n).astype(np.float32) for n in (70, 70, 96)]
    node.constants |= dict(zip(node.names[-3:], biases, strict=True))
    node.attributes["limit"] = 3.0
    assert not np.allclose(node.run()[0], node.expected, atol=0.1)
    node.constants["up_bias"] = np.zeros(69 * N_EXPERTS, np.float32)
    refuses(node, "up_bias has shape [414], expected [420]")
    node.constants["up_bias"] = biases[1]
    node.attributes["limit"] = -1.0
    refuses(node, "attribute limit is -1, expected 0 or more")


def test_a_shut_gate_passes_the_residual_on(node, same_bits):
    node.names.append("layer_gates")
    node.attributes["gate_index"] = 1
    node.feeds["layer_gates"] = np.array([0, 1])
    assert same_bits(node.run()[0], node.expected)
    node.feeds["layer_gates"] = np.array([1, 0])
    assert same_bits(node.run(), node.feeds["residual"])


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("x", np.zeros((1, 5, 95), np.float32), "x has shape [1, 5, 95], expected the last size"),
        ("residual", np.zeros((1, 4, 96), np.float32), "residual has shape [1, 4, 96], expected"),
        ("router", np.zeros((1, 5, 7), np.float32), "router has shape [1, 5, 7], expected that of"),
        ("router", np.zeros((1, 4, 6), np.float32), "router has shape [1, 4, 6], expected that of"),
        ("norm", np.zeros(95, np.float32), "norm_weight has shape [95], expected [96]"),
        ("up", np.zeros((6, 10), np.uint8), "up has shape [6, 10], expected [6, "),
        ("down", np.zeros((5, 10), np.uint8), "down has shape [5, 10], expected [6, "),
        ("n_used", 7, "attribute n_used is 7, expected 1 to 6"),
        ("n_experts", 0, "attribute n_experts is 0, expected 1 to 65536"),
        ("formats", [3, 3], "attribute formats has 2 entries, expected 3"),
        ("formats", [3, 3, 14], "format is 14, expected 0 to 13"),
        ("normed", 2, "attribute normed is 2, expected 0 to 1"),
        ("epsilon", -1.0, "attribute epsilon is -1, expected 0 or more"),
    ],
)
def test_a_graph_that_is_wrong_is_refused(node, name, value, text):
    from .op_node import refuses

    for values in (node.feeds, node.constants, node.attributes):
        if name in values:
            values[name] = value
    refuses(node, text)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems are not told what is read")
def test_of_a_file_only_chosen_experts_are_read(rng, tmp_path):
    """Nor what lies around them, however much of a file the system reads at once."""
    q4_0, k, inner, n_experts, chosen = FORMATS["q4_0"].index, 256, 512, 40, [3, 30]
    n_pages = cpu.packed_nbytes(q4_0, inner, k) // mmap.PAGESIZE
    whole = bytes(3 * n_experts * n_pages * mmap.PAGESIZE)
    with (tmp_path / "weights").open("w+b") as file:
        file.write(whole)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data = np.frombuffer(mapped, np.uint8).reshape(3, n_experts, -1)
    if is_in_memory(data).any():
        pytest.skip("the file system keeps all files in memory")
    shapes = ((inner, k), (inner, k), (k, inner))
    matrices = tuple(
        experts_op.PackedExperts(part, q4_0, *shape)
        for part, shape in zip(data, shapes, strict=True)
    )
    router = np.zeros((1, n_experts), np.float32)
    router[0, chosen] = 1
    x = rng.standard_normal((1, k)).astype(np.float32)
    experts_op.experts(x, router, matrices, len(chosen))
    by_expert = is_in_memory(data).reshape(3, n_experts, n_pages)
    assert by_expert[:, chosen].all()
    assert by_expert.sum() == by_expert[:, chosen].size


def is_in_memory(data):
    """Returns which pages of ``data`` are."""
    pages = np.zeros(data.nbytes // mmap.PAGESIZE, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.c_void_p(data.ctypes.data)
    assert (
        libc.mincore(address, ctypes.c_size_t(data.nbytes), pages.ctypes.data_as(ctypes.c_void_p))
        == 0
    )
    return pages & 1
