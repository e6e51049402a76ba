"""Keys and values of a model as numbers, whatever its KV cache makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.models.config import ModelConfig
from edgedec.models.rope import Rope, rope_of, rope_tables
from edgedec.runtime.sequences.state import LATEST, KVRows

Float32 = npt.NDArray[np.float32]


def plain_kv(kv_rows: KVRows, config: ModelConfig, first_layer: int = 0, start: int = 0) -> Float32:
    """Returns keys before their rotation, then values, of each layer from ``first_layer`` on.

    kv_rows: of a text's tokens from ``start`` on, as `TokenSequence.snapshot` gives them, panels.

    Shapes: [T, (n_layers - first_layer) * 2 * n_kv_heads * head_size], a layer's numbers together.
    """
    keys, values = (_numbers(kv_rows, config, name)[first_layer:] for name in ("key", "value"))
    if any(name.endswith("key_scales") for name in kv_rows):
        keys = keys @ _mixing(config.head_size)  # its own inverse
    tables = _turning_back(config, first_layer, start, keys.shape[2])
    unrotated = np.stack([_turned(k, *tables[first_layer + i]) for i, k in enumerate(keys)])
    both = np.concatenate([unrotated, values], axis=1)  # [L, 2 * H, T, d]
    n_layers, n_heads, n_tokens, d = both.shape
    result: Float32 = both.transpose(2, 0, 1, 3).reshape(n_tokens, n_layers * n_heads * d)
    return result


def _numbers(kv_rows: KVRows, config: ModelConfig, part: str) -> npt.NDArray[Any]:
    """Returns what the rows stand for, of all layers in their order. Shapes: [L, H, T, d]."""
    windowed = config.windowed_layers
    stored = {prefix: iter(_stored(kv_rows, f"{prefix}{part}")) for prefix in ("", LATEST)}
    prefixes = [LATEST if i in windowed else "" for i in range(config.n_layers)]
    return np.stack([next(stored[prefix]) for prefix in prefixes])


def _stored(kv_rows: KVRows, part: str) -> npt.NDArray[Any]:
    """Returns the numbers of some layers. Shapes: [L, H, T, d] float32."""
    rows = kv_rows.get(f"{part}s", np.empty(0)).astype(np.float32)
    scales = kv_rows.get(f"{part}_scales")
    return rows if scales is None else rows * scales[..., None].astype(np.float32)


def _mixing(head_size: int) -> Float32:
    """Returns the orthogonal matrix by which int8 keys are multiplied (kernels/src/kv_append.h)."""
    run = head_size & -head_size
    hadamard = np.ones((1, 1))
    while len(hadamard) < run:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    whole: Float32 = np.kron(np.eye(head_size // run), hadamard / np.sqrt(run)).astype(np.float32)
    return whole


def _turning_back(
    config: ModelConfig, first_layer: int, start: int, n_tokens: int
) -> dict[int, tuple[Float32, Float32]]:
    """Returns cosines and sines [T, d / 2] that undo the rotation of keys, by layer."""
    found: dict[Rope, tuple[Float32, Float32]] = {}
    of_layer = {i: rope_of(config.layer(i)) for i in range(first_layer, config.n_layers)}
    for rope in of_layer.values():
        if rope not in found:
            cos, sin = (t[start:] for t in rope_tables(config, start + n_tokens, rope))
            stretch = cos * cos + sin * sin  # of LongRoPE, squared
            found[rope] = (cos / stretch).astype(np.float32), (sin / stretch).astype(np.float32)
    return {layer: found[rope] for layer, rope in of_layer.items()}


def _turned(keys: Float32, cos: Float32, sin: Float32) -> Float32:
    """Returns the keys [H, T, d] of one layer before their rotation."""
    low, high = np.split(keys, 2, axis=-1)
    return np.concatenate([low * cos + high * sin, high * cos - low * sin], axis=-1)
