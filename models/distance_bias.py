"""Biases that scores of attention have by the distance of a key, T5's way.

Distances share buckets: small ones have one each, larger ones share more and more. A head has a
number for each bucket, the same in all layers.

Source: arXiv:1910.10683, section 2.1; transformers ``modeling_t5.py``
``_relative_position_bucket`` (Apache-2.0).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from edgedec.models.config import ModelConfig

DISTANCE_BIAS = "distance_bias.weight"
"""Weight [n_distance_buckets * n_heads], the heads of a bucket together."""


def distance_buckets(config: ModelConfig) -> npt.NDArray[np.int64]:
    """Returns the bucket of each distance; all that are farther have those at the ends.

    Of a decoder, whose keys lie behind: distances 0 to `max_distance`. Of an encoder: from
    -`max_distance`, keys behind, to `max_distance`.
    """
    n, farthest = config.n_distance_buckets, config.max_distance
    if not config.is_encoder:
        return _buckets(np.arange(farthest + 1), n, farthest)
    half = n // 2
    near = _buckets(np.arange(farthest + 1), half, farthest)
    return np.concatenate([near[:0:-1], near[:1], near[1:] + half])


def _buckets(
    distances: npt.NDArray[np.integer], n_buckets: int, max_distance: int
) -> npt.NDArray[np.int64]:
    n_single = n_buckets // 2
    far = np.maximum(distances, n_single).astype(np.float32) / np.float32(n_single)
    share = np.log(far) / np.float32(math.log(max_distance / n_single))
    shared = n_single + (share * np.float32(n_buckets - n_single)).astype(np.int64)
    buckets: npt.NDArray[np.int64] = np.where(
        distances < n_single, distances, np.minimum(shared, n_buckets - 1)
    )
    return buckets
