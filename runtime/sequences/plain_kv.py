"""Keys and values of a model as numbers, whatever its KV cache makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.models.config import ModelConfig
from edgedec.models.kv_formats import Part, kv_panels_of_rows
from edgedec.models.rope import Rope, rope_of, turned, turning_back
from edgedec.runtime.sequences.state import LATEST, KVRows

Float32 = npt.NDArray[np.float32]


def plain_kv(kv_rows: KVRows, config: ModelConfig, first_layer: int = 0, start: int = 0) -> Float32:
    """Returns keys before their rotation, then values, of each layer from ``first_layer`` on.

    Keys are as the KV cache keeps them, without what heads of some formats leave out as an offset.

    kv_rows: of a text's tokens from ``start`` on, as `TokenSequence.snapshot` gives them, panels.

    Shapes: [T, (n_layers - first_layer) * 2 * n_kv_heads * head_size], a layer's numbers together.
    """
    keys, values = (_numbers(kv_rows, config, part)[first_layer:] for part in ("keys", "values"))
    tables = _turning_back(config, first_layer, start, keys.shape[2])
    unrotated = np.stack([turned(k, *tables[first_layer + i]) for i, k in enumerate(keys)])
    both = np.concatenate([unrotated, values], axis=1)  # [L, 2 * H, T, d]
    n_layers, n_heads, n_tokens, d = both.shape
    result: Float32 = both.transpose(2, 0, 1, 3).reshape(n_tokens, n_layers * n_heads * d)
    return result


def _numbers(kv_rows: KVRows, config: ModelConfig, part: Part) -> npt.NDArray[Any]:
    """Returns what the rows stand for, of all layers in their order. Shapes: [L, H, T, d]."""
    windowed = config.windowed_layers
    stored = {prefix: iter(_stored(kv_rows, prefix, part)) for prefix in ("", LATEST)}
    prefixes = [LATEST if i in windowed else "" for i in range(config.n_layers)]
    return np.stack([next(stored[prefix]) for prefix in prefixes])


def _stored(kv_rows: KVRows, prefix: str, part: Part) -> Sequence[Float32]:
    """Returns the numbers of some layers. Shapes: [H, T, d]."""
    keys = f"{prefix}keys"
    if keys not in kv_rows:
        return ()
    known = {name.removeprefix(prefix): a for name, a in kv_rows.items() if name.startswith(prefix)}
    return list(kv_panels_of_rows(kv_rows[keys].dtype).numbers(known, part))


def _turning_back(
    config: ModelConfig, first_layer: int, start: int, n_tokens: int
) -> dict[int, tuple[Float32, Float32]]:
    """Returns what undoes the rotation of keys, by layer."""
    turns: dict[Rope, tuple[Float32, Float32]] = {}
    of_layer = {i: rope_of(config.layer(i)) for i in range(first_layer, config.n_layers)}
    for rope in of_layer.values():
        if rope not in turns:
            turns[rope] = turning_back(config, rope, start, start + n_tokens)
    return {layer: turns[rope] for layer, rope in of_layer.items()}
