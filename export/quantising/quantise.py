"""Float checkpoints as quantised ones, and what that costs per tensor.

Scales are searched for the least squared error of each group of 32: for a few trial scales the
codes are rounded, the best scale for those codes follows in closed form, and the codes are rounded
again with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.checkpoint import Checkpoint, EditedCheckpoint
from edgedec.export.quantising.tensor_store import TensorStore
from edgedec.models.blocks import head_weight
from edgedec.models.errors import CheckpointError, ConfigError
from edgedec.models.families import matrices
from edgedec.models.layer_inputs import LAYER_TABLE
from edgedec.models.quant import FORMATS, PlainTensor, QuantFormat, ScaleKind
from edgedec.models.weights import WeightSource, float_rows

Floats = npt.NDArray[np.float32]

GROUP = 32
SCHEMES: dict[str, str | None] = {
    "keep": None,
    "int8": "q8_0",
    "int4": "q4_0",
    "int3": "q3_nl",
    "int8-min": "q8_1",
    "int4-min": "q4_1",
    "mixed": "q4_0",
}
"""Scheme -> storage format of matrices; None keeps what the checkpoint has."""

MIXED = "mixed"
"""Scheme whose formats are chosen one by one; that of `SCHEMES` is the smallest of them."""

EIGHT_BITS = {"q3_nl": "q8_0", "q4_0": "q8_0", "q4_1": "q8_1"}
"""Format of embedding and LM head under a scheme of 3 or 4 bits: every token passes through both,
and their errors reach the logits without a layer that could absorb them."""

_OF_TOKENS = ("embed_tokens.weight", LAYER_TABLE, "lm_head.weight")

_MIN_WIDTH = 8
"""Width of a row from which on a scale is worth having."""

_CHUNK_GROUPS = 4096
"""Groups searched at once, so that they and their trial codes stay in the L2 data store."""

_CHUNK_WEIGHTS = 1 << 22
"""Weights quantised at once, and read at once while errors are measured."""

_SYMMETRIC_TRIALS = (7.0, 7.4, 7.7, 8.0, 8.3, 8.6)
_LEVEL_TRIALS = (6.0, 6.6, 7.2, 7.7, 8.2, 8.8, -6.0, -6.8)
_RANGE_TRIALS = (14.0, 14.5, 15.0, 15.5, 16.0)
"""Codes spanned by the extreme value of a group, respectively by its range: of 4 bits. Few levels
leave out more of it."""


class Quantized(EditedCheckpoint):
    """A checkpoint whose matrices are quantised when they are first read, each of them once.

    Vectors, and matrices the checkpoint has quantised already, stay as they are, or become what
    stands in for a format that cannot be held. Of a draft model they are quantised once more where
    they have more bits than the scheme, and its LM head has no more bits than the rest: what it is
    slower costs more than what it errs.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        scheme: str,
        is_draft: bool = False,
        scratch: Path | None = None,
        formats: Mapping[str, QuantFormat] | None = None,
    ) -> None:
        """Checks that the scheme fits the checkpoint.

        scratch: folder of a disk with room for what is quantised, a byte for each weight and more.
        formats: of matrices that shall have another than the scheme's.

        Raises:
            ConfigError: unknown scheme, or a checkpoint without float matrices.
        """
        super().__init__(checkpoint)
        if scheme not in SCHEMES:
            raise ConfigError(f"unknown quantization {scheme!r}; known: {', '.join(SCHEMES)}")
        self._format_name = SCHEMES[scheme]
        self._is_draft = is_draft
        self._formats = formats or {}
        has_floats = any(checkpoint.format(name).is_float for name in matrices(checkpoint.config))
        if self._format_name and not has_floats and not is_draft:
            raise ConfigError(
                f"{checkpoint.name} is quantised already and {scheme} would only lose more; "
                f"use keep, or start from the float checkpoint"
            )
        self._quantised = TensorStore(scratch)
        shapes = matrices(checkpoint.config).items()
        self._short = {name for name, (_, width) in shapes if width < _MIN_WIDTH}

    @property
    def original(self) -> Checkpoint:
        """The checkpoint that is quantised."""
        return self._checkpoint

    def format(self, name: str) -> QuantFormat:
        """Returns the storage format of the matrix ``name`` after quantisation."""
        held = self._checkpoint.stand_in(name) or self._checkpoint.format(name)
        # A router is small, and what it decides is not a matter of degree.
        is_small = name in self._short or name.endswith(".router.weight")
        if self._format_name is None or is_small:
            return held
        fmt = FORMATS[self._format_name]
        is_draft_head = self._is_draft and name == head_weight(self.config)
        if name in _OF_TOKENS and not is_draft_head:
            fmt = FORMATS[EIGHT_BITS.get(fmt.name, fmt.name)]
        fmt = self._formats.get(name, fmt)
        is_requantised = self._is_draft or self._checkpoint.format(name).is_float
        return fmt if is_requantised and held.bits > fmt.bits else held

    def stand_in(self, name: str) -> QuantFormat | None:
        """Returns the format that stands in for that of the matrix ``name``: none is needed."""
        return None

    def rows(self, name: str, start: int, stop: int) -> PlainTensor:
        """Returns rows [start, stop) of the matrix ``name``, quantised.

        Raises:
            CheckpointError: the matrix holds infinities or NaN.
            OSError: the disk is full.
        """
        fmt = self.format(name)
        if self._checkpoint.format(name) == fmt:
            return self._checkpoint.rows(name, start, stop)
        if name not in self._quantised:
            n, k = matrices(self.config)[name]
            self._quantised.put(name, n, self._quantise(name, (n, k), fmt))
        return self._quantised.rows(name, start, stop)

    def __contains__(self, name: str) -> bool:
        return name in self._quantised

    def put(self, name: str, tensor: PlainTensor) -> None:
        """Takes ``tensor`` for the matrix ``name`` in place of what would be made when it is read.

        Raises:
            OSError: the disk is full.
        """
        assert tensor.format == self.format(name)
        self._quantised.put(name, len(tensor.codes), [tensor])

    def _quantise(
        self, name: str, shape: tuple[int, int], fmt: QuantFormat
    ) -> Iterator[PlainTensor]:
        for start, stop in _row_chunks(*shape):
            values = float_rows(self._checkpoint, name, start, stop)
            if not np.isfinite(values).all():
                raise CheckpointError(
                    f"{self.name}: tensor {name} holds infinite or undefined values; fetch it again"
                )
            yield quantize_rows(values, fmt)


class Even(EditedCheckpoint):
    """A checkpoint whose matrices of levels are held in formats whose codes stand for themselves.

    The weights are the same, in more bits.
    """

    def format(self, name: str) -> QuantFormat:
        """Returns the storage format of the matrix ``name``."""
        return super().format(name).even()

    def rows(self, name: str, start: int, stop: int) -> PlainTensor:
        """Returns rows [start, stop) of the matrix ``name``."""
        return super().rows(name, start, stop).even()


def quantize_rows(values: Floats, fmt: QuantFormat) -> PlainTensor:
    """Returns finite ``values`` [N, K] in a format with one scale per group of 32.

    Raises:
        ConfigError: the format is of another kind.
    """
    searches = {ScaleKind.SINGLE: _search_symmetric, ScaleKind.ONE_MIN: _search_range}
    if fmt.kind not in searches:
        known = ", ".join(row.name for row in FORMATS.values() if row.kind in searches)
        raise ConfigError(f"cannot quantise to {fmt.name}; choose one of {known}")
    n, k = values.shape
    # A last partial group repeats its last value, which leaves its range as it is.
    padded = np.pad(values, ((0, 0), (0, -k % GROUP)), mode="edge")
    groups = np.ascontiguousarray(padded, np.float32).reshape(-1, GROUP)
    codes = np.empty(groups.shape, np.uint8)
    scales = np.empty((2, len(groups)), np.float16)
    for start in range(0, len(groups), _CHUNK_GROUPS):
        part = slice(start, start + _CHUNK_GROUPS)
        codes[part], scales[:, part] = searches[fmt.kind](groups[part], fmt)
    scale, minimum = scales.reshape(2, n, -1)
    codes = np.ascontiguousarray(codes.reshape(n, -1)[:, :k])
    if fmt.kind is ScaleKind.SINGLE:
        return PlainTensor(fmt, codes, scale)
    return PlainTensor(fmt, codes, scale, minimum)


def _search_symmetric(x: Floats, fmt: QuantFormat) -> tuple[npt.NDArray[np.uint8], Floats]:
    """Returns codes of the groups ``x`` [G, 32] and (scale, 0) [2, G]."""
    zero = fmt.zero_point
    low, high = x.min(axis=1), x.max(axis=1)
    extreme = np.where(-low > high, low, high)
    scale = np.abs(extreme) / (zero - 1) if fmt.bits == 8 else _best_symmetric(x, extreme, fmt)
    scale = _as_half(scale)
    steps = x * _inverse(scale)[:, None]
    codes = fmt.nearest(steps) if fmt.levels else _round(steps, -zero, zero - 1) + zero
    return codes.astype(np.uint8), np.stack([scale, np.zeros_like(scale)])


def _best_symmetric(x: Floats, extreme: Floats, fmt: QuantFormat) -> Floats:
    zero = fmt.zero_point
    best, gain = np.zeros_like(extreme), np.zeros_like(extreme)
    trials = _LEVEL_TRIALS if fmt.levels else _SYMMETRIC_TRIALS
    for span in np.array(trials, np.float32) * np.float32(zero / 8):
        # The extreme value takes the negative end, which reaches further.
        steps = x * (-span * _inverse(extreme))[:, None]
        codes = fmt.steps(fmt.nearest(steps)) if fmt.levels else _round(steps, -zero, zero - 1)
        product, square = _dot(x, codes), _dot(codes, codes)
        scale = product * _inverse(square)
        is_better = scale * product > gain
        best = np.where(is_better, scale, best)
        gain = np.where(is_better, scale * product, gain)
    return best


def _search_range(x: Floats, fmt: QuantFormat) -> tuple[npt.NDArray[np.uint8], Floats]:
    """Returns codes of the groups ``x`` [G, 32] and (scale, minimum) [2, G]."""
    top = 2**fmt.bits - 1
    low = x.min(axis=1)
    width = x.max(axis=1) - low
    if fmt.bits == 8:
        scale, minimum = width / np.float32(top), low
    else:
        scale, minimum = _best_range(x, low, width, top)
    scale, minimum = _as_half(scale), _as_half(minimum)
    codes = _round((x - minimum[:, None]) * _inverse(scale)[:, None], 0, top)
    return codes.astype(np.uint8), np.stack([scale, minimum])


def _best_range(x: Floats, low: Floats, width: Floats, top: int) -> tuple[Floats, Floats]:
    best_scale, best_minimum, loss = np.zeros_like(low), low, np.full_like(low, np.inf)
    above = x - low[:, None]  # distances from the lowest value, so that sums do not cancel
    total = above.sum(axis=1)
    for span in np.array(_RANGE_TRIALS, np.float32) * np.float32(top / 15):
        codes = _round(above * (span * _inverse(width))[:, None], 0, top)
        count, square, product = codes.sum(axis=1), _dot(codes, codes), _dot(above, codes)
        scale = (GROUP * product - total * count) * _inverse(GROUP * square - count * count)
        offset = (total - scale * count) / GROUP
        trial = -scale * product - offset * total  # squared error, less what all trials share
        is_better = trial < loss
        best_scale = np.where(is_better, scale, best_scale)
        best_minimum = np.where(is_better, low + offset, best_minimum)
        loss = np.where(is_better, trial, loss)
    return best_scale, best_minimum


def _as_half(values: Floats) -> Floats:
    """Returns ``values`` rounded to float16, which is how they are stored."""
    limit = np.finfo(np.float16).max
    return np.clip(values, -limit, limit).astype(np.float16).astype(np.float32)


def _round(values: Floats, low: int, high: int) -> Floats:
    np.rint(values, out=values)
    return np.clip(values, low, high, out=values)


def _inverse(values: Floats) -> Floats:
    """Returns 1 / values, and 0 where that is not a finite float32."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = 1 / values
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _dot(a: Floats, b: Floats) -> Floats:
    result: Floats = np.einsum("gi,gi->g", a, b)
    return result


@dataclass(frozen=True)
class TensorError:
    """What quantisation changed in one matrix.

    relative_rms: root mean square of the differences over that of the weights.
    max_abs: largest difference.
    """

    name: str
    format: str
    relative_rms: float
    max_abs: float


def measure_errors(
    original: WeightSource,
    quantized: WeightSource,
    on_progress: Callable[[int, int], None] | None = None,
) -> tuple[TensorError, ...]:
    """Returns the error of every matrix whose format changed, the worst first.

    Args:
        on_progress: receives the weights compared so far, and how many there are.
    """
    changed = {
        name: shape
        for name, shape in matrices(original.config).items()
        if original.format(name) != quantized.format(name)
    }
    n_total = sum(n * k for n, k in changed.values())
    errors: list[TensorError] = []
    n_done = 0
    for name, (n, k) in changed.items():
        errors.append(_measure(original, quantized, name, (n, k)))
        original.release()
        n_done += n * k
        if on_progress:
            on_progress(n_done, n_total)
    return tuple(sorted(errors, key=lambda error: -error.relative_rms))


def _measure(
    original: WeightSource, quantized: WeightSource, name: str, shape: tuple[int, int]
) -> TensorError:
    square_error, square, max_abs = 0.0, 0.0, 0.0
    for start, stop in _row_chunks(*shape):
        values = float_rows(original, name, start, stop)
        difference = float_rows(quantized, name, start, stop) - values
        square_error += square_sum(difference)
        square += square_sum(values)
        max_abs = max(max_abs, float(np.abs(difference).max()))
    relative_rms = (square_error / square) ** 0.5 if square else 0.0
    return TensorError(name, quantized.format(name).name, relative_rms, max_abs)


def square_sum(values: npt.NDArray[np.float32]) -> float:
    """Returns the sum of squares, which for values beyond 1e19 is beyond float32."""
    total = float(np.vdot(values, values))
    return total if np.isfinite(total) else float(np.square(values, dtype=np.float64).sum())


def _row_chunks(n: int, k: int) -> Iterator[tuple[int, int]]:
    step = max(1, _CHUNK_WEIGHTS // k)
    for start in range(0, n, step):
        yield start, min(start + step, n)
