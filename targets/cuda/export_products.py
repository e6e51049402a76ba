"""Products with quantised matrices: one definition, scheduled for few outputs and for many.

Few outputs: a warp for each few, whose lanes read neighbouring words of the weights and use each
for up to 16 rows. The sum of a row does not depend on how many rows there are. Many rows of wide
matrices: blocks of 64 by 64 outputs, weights and activations passing through shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import te
from tvm.s_tir import Schedule

from edgedec.models.quant import QuantFormat
from edgedec.targets.cuda.export_kernel import Expr, Kernel, Tensor, constant, placeholder

FEW_ROWS = 16
"""Most rows that a warp computes an output of."""

WIDE = 8192
"""Outputs of a row for which blocks of 64 by 64 occupy a large GPU."""

WORD_BITS = 32
_LANES = 32
_WARPS = 4
_TILE, _THREAD_TILE, _DEPTH = 64, 4, 32


@dataclass(frozen=True)
class StoredMatrix:
    """How a matrix [n, k] is kept on the device.

    bits: of a code, 4 or 8; 16 for float16 numbers, which have no groups. A weight is ``scale *
    (code - zero_point) + minimum``; scales and, if `has_minimum`, minimums are float16.
    """

    n: int
    k: int
    bits: int
    group: int = 0
    zero_point: int = 0
    has_minimum: bool = False

    @classmethod
    def of(cls, n: int, k: int, fmt: QuantFormat) -> StoredMatrix:
        """Returns how a matrix of ``fmt`` is kept."""
        if fmt.is_float:
            return cls(n, k, 16)
        bits = 4 if fmt.bits == 4 else 8
        return cls(n, k, bits, fmt.group, fmt.zero_point, fmt.has_minimum)

    @property
    def per_word(self) -> int:
        """Weights in a word of 32 bits; those of float16 that a lane reads at a time."""
        return 8 if self.bits == 16 else WORD_BITS // self.bits

    def has_tiles(self, rows: int) -> bool:
        """Says whether a product with ``rows`` is computed in blocks of 64 by 64."""
        return rows > FEW_ROWS and self.n >= WIDE

    def padded(self, rows: int) -> int:
        """Returns the columns that a kernel for ``rows`` sums over, a multiple of what it takes."""
        step = _DEPTH if self.has_tiles(rows) else _LANES * self.per_word
        return -(-self.k // step) * step

    @property
    def key(self) -> str:
        """Names what decides the code of a kernel over it."""
        kind = f"q{self.bits}g{self.group}z{self.zero_point}{'m' if self.has_minimum else ''}"
        return f"{'f16' if self.bits == 16 else kind}_{self.n}x{self.k}"

    def arguments(self) -> list[Tensor]:
        """Returns the arguments of a kernel that hold it: codes, scales, minimums."""
        if self.bits == 16:
            return [placeholder("codes", self.n, self.k, dtype="float16")]
        codes = placeholder("codes", self.n, self.k // self.per_word, dtype="uint32")
        names = ("scales", "minimums") if self.has_minimum else ("scales",)
        sizes = (self.n, self.k // self.group)
        return [codes, *(placeholder(name, *sizes, dtype="float16") for name in names)]

    def weight(self, arguments: list[Tensor], n: Expr, k: Expr) -> Expr:
        """Returns the weight at row ``n``, column ``k`` as float32."""
        codes, *groups = arguments
        if self.bits == 16:
            return codes[n, k].astype("float32")
        shift = (k % self.per_word * self.bits).astype("uint32")
        mask = constant((1 << self.bits) - 1, "uint32")
        code = (codes[n, k // self.per_word] >> shift & mask).astype("float32")
        scale, *minimum = (each[n, k // self.group].astype("float32") for each in groups)
        weight = (code - constant(self.zero_point)) * scale
        return weight + minimum[0] if minimum else weight


def product(rows: int, matrix: StoredMatrix, has_bias: bool, has_residual: bool) -> Kernel:
    """Returns ``y = x @ W.T``, plus a bias, plus a residual.

    Arguments: x [rows, k]; the matrix; bias [n]; residual [rows, n]; y [rows, n].
    """
    n, k, padded = matrix.n, matrix.k, matrix.padded(rows)
    x, parts = placeholder("x", rows, k), matrix.arguments()
    along = te.reduce_axis((0, padded), name="k")

    def inside(j: Expr, value: Expr) -> Expr:
        """Returns ``value``, 0 past the last column; words are inside or outside as a whole."""
        if padded == k:
            return value
        word = matrix.per_word
        return te.if_then_else(j // word < k // word, value, constant(0))

    w = te.compute((n, padded), lambda i, j: inside(j, matrix.weight(parts, i, j)), name="w")
    xs = te.compute((rows, padded), lambda m, j: inside(j, x[m, j]), name="xs")
    y = te.compute((rows, n), lambda m, i: te.sum(xs[m, along] * w[i, along], along), name="sums")
    extra = [placeholder("bias", n)] * has_bias + [placeholder("residual", rows, n)] * has_residual

    def out(m: Expr, i: Expr) -> Expr:
        value = y[m, i]
        for tensor in extra:
            value = value + (tensor[i] if len(tensor.shape) == 1 else tensor[m, i])
        return value

    result = te.compute((rows, n), out, name="y")
    name = f"product_{rows}_{matrix.key}{'_bias' * has_bias}{'_add' * has_residual}"
    function = te.create_prim_func([x, *parts, *extra, result])
    plan = _tiles if matrix.has_tiles(rows) else _warps
    return Kernel(name, function, lambda sch: plan(sch, matrix), _on_cpu)


def _warp_tile(n: int) -> tuple[int, int]:
    """Returns outputs of a warp and warps of a block: more where there are plenty of outputs."""
    per_warp = next((size for size in (4, 2) if n % size == 0 and n >= 1024 * size), 1)
    return per_warp, next(size for size in (_WARPS, 2, 1) if n // per_warp % size == 0)


def _warps(schedule: Schedule, matrix: StoredMatrix) -> None:
    per_warp, warps = _warp_tile(matrix.n)
    sums = schedule.get_sblock("sums")
    m, n, k = schedule.get_loops(sums)
    words, inner = schedule.split(k, [None, matrix.per_word])
    outer, lane = schedule.split(words, [None, _LANES])
    partial = schedule.rfactor(lane, 0)
    m, n, lane = schedule.get_loops(sums)
    some, m = schedule.split(m, [None, min(FEW_ROWS, int(schedule.get(m).extent))])
    block, warp, each = schedule.split(n, [None, warps, per_warp])
    schedule.reorder(some, block, warp, m, each, lane)
    schedule.bind(some, "blockIdx.y")
    schedule.bind(block, "blockIdx.x")
    schedule.bind(warp, "threadIdx.y")
    schedule.bind(lane, "threadIdx.x")
    schedule.compute_at(partial, warp, preserve_unit_loops=True)
    lane, m, each, outer, inner = schedule.get_loops(partial)[3:]
    schedule.bind(lane, "threadIdx.x")
    schedule.reorder(lane, outer, m, each, inner)
    schedule.set_scope(partial, 0, "local")
    schedule.set_scope(sums, 0, "local")
    weights = schedule.get_sblock("w")
    schedule.compute_at(weights, outer, preserve_unit_loops=True)
    schedule.set_scope(weights, 0, "local")
    x = schedule.get_sblock("xs")
    schedule.compute_at(x, m, preserve_unit_loops=True)
    schedule.set_scope(x, 0, "local")
    *_, values = schedule.get_loops(x)
    *_, quad = schedule.split(values, [None, 4])
    schedule.vectorize(quad)
    for unrolled in (*schedule.get_loops(weights)[5:], m, each, inner):
        schedule.unroll(unrolled)
    schedule.decompose_reduction(partial, outer)
    schedule.reverse_compute_at(schedule.get_sblock("y"), warp, preserve_unit_loops=True)


def _tiles(schedule: Schedule, matrix: StoredMatrix) -> None:
    sums = schedule.get_sblock("sums")
    m, n, k = schedule.get_loops(sums)
    threads = _TILE // _THREAD_TILE
    my, mi = schedule.split(m, [threads, None])
    block, nx, ni = schedule.split(n, [None, threads, _THREAD_TILE])
    outer, inner = schedule.split(k, [None, _DEPTH])
    schedule.reorder(block, my, nx, outer, inner, mi, ni)
    schedule.bind(block, "blockIdx.x")
    schedule.bind(my, "threadIdx.y")
    schedule.bind(nx, "threadIdx.x")
    schedule.set_scope(sums, 0, "local")
    for shared in map(schedule.get_sblock, ("xs", "w")):
        schedule.set_scope(shared, 0, "shared")
        schedule.compute_at(shared, outer, preserve_unit_loops=True)
        fused = schedule.fuse(*schedule.get_loops(shared)[-2:])
        _, ty, tx = schedule.split(fused, [None, threads, threads])
        schedule.bind(ty, "threadIdx.y")
        schedule.bind(tx, "threadIdx.x")
        schedule.storage_align(shared, 0, 0, _DEPTH, 1)  # neighbouring rows in other banks
    schedule.unroll(mi)
    schedule.unroll(ni)
    schedule.decompose_reduction(sums, outer)
    schedule.reverse_compute_at(schedule.get_sblock("y"), nx, preserve_unit_loops=True)


def _on_cpu(schedule: Schedule) -> None:
    sums = schedule.get_sblock("sums")
    m, n, k = schedule.get_loops(sums)
    schedule.reorder(n, m, k)
    schedule.compute_at(schedule.get_sblock("w"), n)
    schedule.compute_inline(schedule.get_sblock("xs"))
    schedule.parallel(n)
