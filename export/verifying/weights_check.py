"""Whether the weights of a checkpoint can be those of a trained model.

An interrupted download leaves a file of full size whose last part, or all of it, is zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edgedec.models.blocks import head_weight
from edgedec.models.errors import CheckpointError
from edgedec.models.families import matrices, weight_shapes
from edgedec.models.quant import PlainTensor
from edgedec.models.weights import N_NAMED, WeightSource

_CHUNK_WEIGHTS = 1 << 22
_MANY_ZEROS, _MANY_PADDING = 0.01, 0.25
"""Share of the rows of a layer's matrix, respectively of an embedding or a head.

The latter are padded with rows of zeros in healthy models.
"""
_FETCH_AGAIN = "fetch it again, and compare its checksum with the publisher's"


INTERRUPTED = f"the download of the model seems to have been interrupted: {_FETCH_AGAIN}"


@dataclass
class WeightsCheck:
    """What was seen of a checkpoint's weights.

    zeros: names of matrices that hold zeros alone. partly: share of the rows that are zeros, by the
    matrix's name, where it is large. zero_norms: names of norms that hold zeros alone.
    """

    n_matrices: int = 0
    n_vectors: int = 0
    zeros: list[str] = field(default_factory=list)
    partly: dict[str, float] = field(default_factory=dict)
    zero_norms: list[str] = field(default_factory=list)

    def warnings(self, name: str) -> list[str]:
        """Returns a line for each kind of zeros in the model ``name``."""
        warnings = []
        if self.zeros:
            warnings.append(f"{_counted(self.zeros, self.n_matrices, 'matrices')} of {name}")
        if self.partly:
            shares = [f"{matrix} ({share:.0%})" for matrix, share in self.partly.items()]
            warnings.append(f"many rows of {_named(shares)} of {name}")
        if self.zero_norms:
            warnings.append(
                f"{_counted(self.zero_norms, self.n_vectors, 'norms and biases')} of {name}"
            )
        return [
            f"{what} hold zeros alone: if the publisher did not mean that, the download of the "
            f"model was interrupted: {_FETCH_AGAIN}"
            for what in warnings
        ]


def check_weights_read(
    source: WeightSource, name: str, report: Callable[[int, int], None]
) -> WeightsCheck:
    """Returns what the weights of the model ``name`` are, after reading all of them.

    report: receives the weights read so far, and how many there are.

    Raises:
        CheckpointError: A weight is infinite or undefined, or so many are zeros that nothing can
            be computed.
    """
    check, shapes = WeightsCheck(), weight_shapes(source.config)
    n_total, n_done = sum(int(np.prod(shape)) for shape in shapes.values()), 0
    for weight, shape in shapes.items():
        if len(shape) == 2:
            _check_matrix(check, source, name, weight, (shape[0], shape[1]))
        else:
            _check_vector(check, source, name, weight)
        source.release()
        n_done += int(np.prod(shape))
        report(n_done, n_total)
    _refuse_empty(check, source, name)
    return check


def _check_matrix(
    check: WeightsCheck, source: WeightSource, name: str, weight: str, shape: tuple[int, int]
) -> None:
    (n, k), n_zeros = shape, 0
    step = max(1, _CHUNK_WEIGHTS // max(k, 1))
    for start in range(0, n, step):
        rows = source.rows(weight, start, min(start + step, n))
        if len(bad := np.flatnonzero(~_finite_rows(rows))):
            _refuse_undefined(name, weight, f" in row {start + int(bad[0])}")
        n_zeros += int(np.count_nonzero(~_nonzero_rows(rows)))
    check.n_matrices += 1
    if n_zeros == n:
        check.zeros.append(weight)
    elif n_zeros > n * (_MANY_ZEROS if weight.startswith("layers.") else _MANY_PADDING):
        check.partly[weight] = n_zeros / n


def _check_vector(check: WeightsCheck, source: WeightSource, name: str, weight: str) -> None:
    values = source.vector(weight)
    if not np.isfinite(values).all():
        _refuse_undefined(name, weight, "")
    check.n_vectors += 1
    if "norm" in weight and weight.endswith(".weight") and not values.any():
        check.zero_norms.append(weight)


def _refuse_undefined(name: str, weight: str, where: str) -> None:
    raise CheckpointError(
        f"{name}: tensor {weight} holds infinite or undefined values{where}: {_FETCH_AGAIN}; if "
        "that is the same, the model was published so: take another one"
    )


def _refuse_empty(check: WeightsCheck, source: WeightSource, name: str) -> None:
    zeros, config = set(check.zeros), source.config
    if check.n_matrices and len(zeros) == check.n_matrices:
        raise CheckpointError(
            f"{name}: all {check.n_matrices} matrices hold zeros alone, so the download was "
            f"interrupted: {_FETCH_AGAIN}"
        )
    matrices_by_part: dict[str, list[str]] = {head_weight(config): [head_weight(config)]}
    for weight in matrices(config):
        part = ".".join(weight.split(".")[:2])
        if weight.startswith(("layers.", "embed_tokens.")):
            matrices_by_part.setdefault(part, []).append(weight)
    for part, weights in matrices_by_part.items():
        if zeros.issuperset(weights):
            raise CheckpointError(
                f"{name}: {part} holds zeros alone, so the download was interrupted: {_FETCH_AGAIN}"
            )


def _finite_rows(rows: PlainTensor) -> npt.NDArray[np.bool_]:
    """Returns whether a row holds numbers alone. Shapes: [N]."""
    if rows.format.name == "bf16":
        bits = rows.codes.astype(np.uint16, copy=False)
        return np.asarray(((bits & 0x7F80) != 0x7F80).all(axis=1))
    if rows.format.is_float:
        return np.asarray(np.isfinite(rows.codes).all(axis=1))
    finite = np.isfinite(rows.scale).all(axis=1)
    return np.asarray(
        finite & np.isfinite(rows.minimum).all(axis=1) if rows.minimum.size else finite
    )


def _nonzero_rows(rows: PlainTensor) -> npt.NDArray[np.bool_]:
    """Returns whether a row holds another number than zero. Shapes: [N]."""
    if rows.format.name == "bf16":
        return np.asarray((rows.codes.astype(np.uint16, copy=False) & 0x7FFF).any(axis=1))
    if rows.format.is_float:
        return np.asarray(rows.codes.any(axis=1))
    scale, minimum = rows.groups()
    if minimum is not None:
        return np.asarray(scale.any(axis=1) | minimum.any(axis=1))
    has_code = np.asarray((rows.codes != rows.format.zero_point).any(axis=1))
    return np.asarray(scale.any(axis=1) & has_code)


def _counted(names: Sequence[str], n: int, what: str) -> str:
    return f"{len(names)} of {n} {what} ({_named(names)})"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - N_NAMED} more" if len(names) > N_NAMED else ""
    return f"{', '.join(names[:N_NAMED])}{more}"
