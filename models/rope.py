"""Rotary positions: the angle by which each pair of channels turns at each position."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgedec.models.config import LayerConfig, ModelConfig, RopeScaling
from edgedec.models.errors import ConfigError


class Rope(NamedTuple):
    """What decides the rotation tables of a layer; layers that agree in it share them."""

    theta: float
    is_scaled: bool
    head_size: int = 0
    """0 for the model's."""


UNROTATED = Rope(0.0, True)
"""Tables of angles of 0."""


def rope_of(layer: LayerConfig) -> Rope:
    """Returns what decides the rotation tables of ``layer``."""
    return Rope(layer.rope_theta, layer.has_rope_scaling, layer.head_size)


def rope_names(config: ModelConfig, rope: Rope) -> tuple[str, str]:
    """Returns the names of the tables of cosines and sines of the rotations ``rope``."""
    stem = "encoder." if config.is_encoder else ""
    stem += "rope" if rope.theta == config.rope_theta else f"rope.{rope.theta!r}"
    stem += "" if rope.is_scaled else ".unscaled"
    stem += f".{rope.head_size}" if rope.head_size else ""
    return f"{stem}.cos", f"{stem}.sin"


def ropes_of(config: ModelConfig) -> set[Rope]:
    """Returns what decides each pair of rotation tables that a model has."""
    ropes = {rope_of(config.layer(i)) for i in range(config.n_layers)}
    if config.is_qk_norm_late:
        ropes.add(Rope(config.rope_theta, True))
    if config.encoder is not None:
        ropes.add(UNROTATED)
    return ropes


def rope_tables(
    config: ModelConfig, n_positions: int, rope: Rope | None = None, start: int = 0
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Returns cosine and sine of every rotation angle, computed in float64.

    Channels that keep still (`ModelConfig.rotary_size`) come last, with an angle of 0.

    rope: of a layer that differs from the model; the model's when None. start: first position.

    Shapes: cos, sin [n_positions - start, head_size / 2] float32.
    """
    rope = rope or Rope(config.rope_theta, True)
    scaling = config.rope_scaling if rope.is_scaled else RopeScaling()
    head_size = rope.head_size or config.head_size
    frequencies = np.zeros(head_size // 2)
    if rope.theta:
        size = config.rotary_size or head_size
        frequencies[: size // 2] = _frequencies(config, rope.theta, size, scaling)
    angles = np.outer(np.arange(start, n_positions, dtype=np.float64), frequencies)
    cos, sin = np.cos(angles), np.sin(angles)
    if scaling.kind in ("factors", "longrope"):
        cos[:, frequencies > 0] *= scaling.factor
        sin *= scaling.factor
    return cos.astype(np.float32), sin.astype(np.float32)


def turning_back(
    config: ModelConfig, rope: Rope, start: int, stop: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Returns cosines and sines [stop - start, head_size / 2] that undo a rotation in `turned`."""
    cos, sin = rope_tables(config, stop, rope, start)
    stretch = cos * cos + sin * sin  # of LongRoPE, squared
    return (cos / stretch).astype(np.float32), (sin / -stretch).astype(np.float32)


def turned(
    keys: npt.NDArray[np.float32], cos: npt.NDArray[np.float32], sin: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Returns keys [..., T, d] whose pairs of channels are turned. Shapes: cos, sin [T, d / 2]."""
    low, high = np.split(keys, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def _frequencies(
    config: ModelConfig, theta: float, size: int, scaling: RopeScaling
) -> npt.NDArray[np.float64]:
    """Returns the frequencies of ``size`` rotating channels."""
    frequencies = theta ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        return _llama3_frequencies(frequencies, scaling)
    if scaling.kind in ("factors", "longrope"):
        factors = scaling.factors
        if scaling.kind == "longrope" and config.max_positions <= scaling.original_max_positions:
            factors = scaling.short_factors
        if len(factors) != size // 2:
            raise ConfigError(f"rope factors: got {len(factors)}, expected {size // 2}")
        return frequencies / np.asarray(factors, np.float64)
    return frequencies


def query_growth(
    config: ModelConfig, positions: npt.NDArray[np.integer]
) -> npt.NDArray[np.float64]:
    """Returns what queries at ``positions`` are multiplied by (`ModelConfig.query_growth`)."""
    growth = np.log1p(positions // config.query_growth_start, dtype=np.float64)
    return np.asarray(1 + config.query_growth * growth, np.float64)


def yarn_factors(
    theta: float,
    size: int,
    factor: float,
    original_max_positions: int,
    betas: tuple[float, float] = (32.0, 1.0),
    is_truncated: bool = True,
) -> tuple[float, ...]:
    """Returns what YaRN divides each frequency of ``size`` rotating channels by.

    betas: turns within the original context from which frequencies stay, and below which they are
    divided by ``factor``. is_truncated: whether the bounds between are whole channels.

    Source: arXiv:2309.00071, section 3.2; transformers ``modeling_rope_utils.py``
    ``_compute_yarn_parameters`` (Apache-2.0).
    """
    turns = original_max_positions / (np.array(betas) * 2 * np.pi)
    low, high = size * np.log(turns) / (2 * np.log(theta))
    if is_truncated:
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = (np.arange(size // 2) - low) / (high - low or 0.001)
    kept = 1 - np.clip(ramp, 0, 1)
    return tuple((1 / (kept + (1 - kept) / factor)).tolist())


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """Returns what YaRN multiplies cosines and sines by. Source: as for `yarn_factors`."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _llama3_frequencies(
    frequencies: npt.NDArray[np.float64], scaling: RopeScaling
) -> npt.NDArray[np.float64]:
    wavelengths = 2 * np.pi / frequencies
    turns = scaling.original_max_positions / wavelengths
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
