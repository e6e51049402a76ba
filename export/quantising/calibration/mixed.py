"""Bits of each matrix, chosen against a budget by what they cost the model's predictions.

Each matrix is rounded alone to the fewest bits, and the KL divergence that this causes is measured.
That of the other formats is in proportion to their squared errors in the matrix's outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.checkpoint import Checkpoint
from edgedec.export.quantising.calibration.calibrate import Finished, OnProgress
from edgedec.export.quantising.calibration.rows import SideBySideOps
from edgedec.export.quantising.calibration.scores import score
from edgedec.export.quantising.calibration.texts import CalibrationTexts
from edgedec.export.quantising.quantise import MIXED, Quantized, quantize_rows
from edgedec.models.blocks import head_weight
from edgedec.models.errors import ConfigError
from edgedec.models.families import find_family, matrices
from edgedec.models.quant import FORMATS, QuantFormat, ScaleKind
from edgedec.models.reference import ReferenceModel
from edgedec.models.weights import float_rows

Floats = npt.NDArray[np.float32]

_ROWS = 1024
_N_TOKENS = 128
"""Tokens of the passes that measure KL divergences, one for each matrix."""


@dataclass(frozen=True)
class _Step:
    """The next larger format of a matrix: what it gains for what it costs."""

    name: str
    fmt: QuantFormat
    gain: float
    n_bits: float


def stored_bits(fmt: QuantFormat) -> float:
    """Returns the bits a weight takes, its share of scales and minima included."""
    return fmt.bits + (1.0 if fmt.kind is ScaleKind.ONE_MIN else 0.5)


CANDIDATES = tuple(
    sorted(
        (
            fmt
            for fmt in FORMATS.values()
            if fmt.kind in (ScaleKind.SINGLE, ScaleKind.ONE_MIN)
            and fmt.name not in ("q8_1", "q2_0")  # no better than q8_0; three values are too few
        ),
        key=stored_bits,
    )
)
"""Formats a matrix may get, the smallest first. That one is for targets below the second: whether
larger targets gain by it was not measured."""


def choose_formats(
    source: Checkpoint,
    texts: CalibrationTexts,
    target_bits: float,
    finished: Finished | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> dict[str, QuantFormat]:
    """Returns a format for each float matrix, ``target_bits`` a weight on the mean.

    All begin with the fewest bits; more go where each takes away the most of the KL divergence that
    is expected on ``texts``.

    finished: keeps what is measured of each matrix, for an export that goes on later.

    Raises:
        ConfigError: no choice has so few bits.
    """
    candidates = CANDIDATES[target_bits >= stored_bits(CANDIDATES[1]) :]
    costs = _costs(source, texts, candidates, finished, on_progress)
    sizes = {name: float(np.prod(matrices(source.config)[name])) for name in costs}
    room = (target_bits - stored_bits(candidates[0])) * sum(sizes.values())
    if room < 0:
        raise ConfigError(
            f"target bits are {target_bits:g}, expected at least {stored_bits(CANDIDATES[0]):g}: "
            f"that is the smallest format a matrix can have"
        )
    chosen = dict.fromkeys(costs, candidates[0])
    while steps := [s for s in _steps(chosen, costs, sizes) if s.n_bits <= room and s.gain > 0]:
        best = max(steps, key=lambda step: step.gain / step.n_bits)
        chosen[best.name] = best.fmt
        room -= best.n_bits
    return chosen


def _steps(
    chosen: Mapping[str, QuantFormat],
    costs: Mapping[str, Mapping[str, float]],
    sizes: Mapping[str, float],
) -> list[_Step]:
    return [
        _Step(
            name,
            larger,
            costs[name][fmt.name] - costs[name][larger.name],
            (stored_bits(larger) - stored_bits(fmt)) * sizes[name],
        )
        for name, fmt in chosen.items()
        for larger in CANDIDATES[CANDIDATES.index(fmt) + 1 :]
    ]


def _costs(
    source: Checkpoint,
    texts: CalibrationTexts,
    candidates: Sequence[QuantFormat],
    finished: Finished | None,
    on_progress: OnProgress,
) -> dict[str, dict[str, float]]:
    """Returns the KL divergence that each matrix is expected to cause, by format."""
    errors = _measure(source, texts)
    ids = texts.texts[0][:_N_TOKENS]
    expected = ReferenceModel(source).forward(ids.tolist()).logits
    costs: dict[str, dict[str, float]] = {}
    for name, by_format in errors.items():
        kept = f"{candidates[0].name}.{name}"
        known = finished.load_vector(kept) if finished else None
        if known is None:
            others = {other: source.format(other) for other in errors if other != name}
            changed = Quantized(source, MIXED, formats=others | {name: candidates[0]})
            logits = ReferenceModel(changed).forward(ids.tolist()).logits
            known = np.array([score(logits, expected, ids).kl_nats])
            if finished:
                finished.save_vector(kept, known)
        least = max(by_format[candidates[0].name], 1e-30)
        on_progress(len(costs), len(errors))
        costs[name] = {fmt: float(known[0]) * error / least for fmt, error in by_format.items()}
    return costs


def _measure(source: Checkpoint, texts: CalibrationTexts) -> dict[str, dict[str, float]]:
    """Returns the relative squared error of each matrix's outputs, by format."""
    errors: dict[str, dict[str, float]] = {}

    def on_inputs(name: str, inputs: Floats) -> None:
        if source.format(name).is_float and name not in errors:
            errors[name] = _errors(source, name, np.mean(inputs * inputs, axis=0))

    ops = SideBySideOps(source, source, texts.texts[:1], [], on_inputs)
    find_family(source.config.family).recipe(ops, source.config)
    embedding = "embed_tokens.weight"
    if head_weight(source.config) != embedding and source.format(embedding).is_float:
        hidden = source.config.hidden_size
        errors[embedding] = _errors(source, embedding, np.ones(hidden, np.float32))
    return errors


def _errors(source: Checkpoint, name: str, power: Floats) -> dict[str, float]:
    n = matrices(source.config)[name][0]
    lost, total = dict.fromkeys((fmt.name for fmt in CANDIDATES), 0.0), 0.0
    for start in range(0, n, _ROWS):
        weights = float_rows(source, name, start, min(start + _ROWS, n))
        total += float((weights * weights @ power).sum())
        for fmt in CANDIDATES:
            error = quantize_rows(weights, fmt).dequantize() - weights
            lost[fmt.name] += float((error * error @ power).sum())
    return {name: value / max(total, 1e-30) for name, value in lost.items()}
