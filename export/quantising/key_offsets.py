"""Offsets of keys: what a head's keys have in common, which a KV cache of few bits leaves out.

Attention adds to scores what that takes from them (kernels/src/key_offsets.h), so it computes the
same from smaller keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedec.export.kv_panels import kv_place
from edgedec.export.to_onnx.runners import FusedRunner
from edgedec.models.config import ModelConfig
from edgedec.models.rope import rope_of, turned, turning_back

Float32 = npt.NDArray[np.float32]

_N_SINKS = 16
"""First tokens of a text, whose keys are unlike the others."""

_LEFT_IN = 0.2
"""Pairs of channels keep their offset if that, over all of these, is at most so much of what keys
differ by, in squares: each pair that has none makes attention faster."""

_CHUNK = 32


def measure_key_offsets(
    graph: Path, config: ModelConfig, tokens: Sequence[int]
) -> dict[int, Float32]:
    """Returns the offsets that pay, by layer that keeps keys.

    graph: fused, with a float16 KV cache. tokens: of a text, more than the first few count.

    Shapes: each [n_kv_heads, head_size]; pairs of channels that are not worth it are 0.
    """
    if len(tokens) < 2 * _N_SINKS:
        return {}
    runner = FusedRunner(graph, config, len(tokens))
    for start in range(0, len(tokens), _CHUNK):
        chunk = tokens[start : start + _CHUNK]
        runner.compute_logits(chunk, range(-1, len(chunk) - 1), start)
    offsets = {}
    for layer in config.kv_layers:
        place, rope = kv_place(config, layer), rope_of(config.layer(layer))
        rows = runner.key_rows(place.caches, place.layer, len(tokens))
        keys = turned(rows, *turning_back(config, rope, 0, len(tokens)))[:, _N_SINKS:]
        of_layer = _worth_it(keys) if np.isfinite(keys).all() else np.zeros(1, np.float32)
        if of_layer.any():
            offsets[layer] = of_layer
    return offsets


def _worth_it(keys: Float32) -> Float32:
    """Returns the mean of keys, pairs of channels 0 that change little.

    Shapes: keys [H, T, d] before their rotation -> [H, d].
    """
    mean = keys.mean(axis=1, dtype=np.float64)
    spread = np.square(keys - mean[:, None]).sum(axis=-1).mean(axis=1)
    low, high = np.split(mean, 2, axis=-1)
    squares = low**2 + high**2
    order = np.argsort(squares, axis=-1)
    added = np.cumsum(np.take_along_axis(squares, order, -1), axis=-1)
    is_small = np.zeros(squares.shape, np.bool_)
    np.put_along_axis(is_small, order, added <= _LEFT_IN * spread[:, None], -1)
    kept = np.where(np.concatenate([is_small, is_small], axis=-1), 0, mean)
    return kept.astype(np.float32)
