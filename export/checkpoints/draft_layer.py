"""The layer that publishers add to a checkpoint for drafting; no text depends on it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from edgedec.models.config import ModelConfig
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families import draft_layer
from edgedec.models.weights import SourceWeight, check_weights

DRAFT_LAYER = "mtp."
"""What names of weights begin with that belong to a layer for drafting."""

_NUMBER = re.compile(r"(?:mtp\.layers|blk)\.(\d+)\.")

WeightPlaces = dict[str, tuple[tuple[int, ...], SourceWeight]]


def find_draft_layer(
    config: ModelConfig, stored: Mapping[str, tuple[int, ...]], is_gguf: bool
) -> WeightPlaces:
    """Returns shape and place of its weights; none where there is no such layer.

    stored: shape of every tensor of such layers, by the checkpoint's own name.

    Raises:
        UnsupportedModelError: There are several, or another kind than the family's.
        CheckpointError: A weight is missing or has another shape.
    """
    if not stored:
        return {}
    places = {
        f"{DRAFT_LAYER}{name}": (weight.shape, weight.gguf if is_gguf else weight.hf)
        for name, weight in draft_layer(config).items()
    }
    if not places:
        raise UnsupportedModelError(f"edgedec knows none for the family {config.family}")
    numbers = {match[1] for name in stored if (match := _NUMBER.match(name))}
    if len(numbers) > 1:
        raise UnsupportedModelError(f"there are {len(numbers)}, expected 1")
    check_weights(config.family, places, stored)
    return places


def why_left_out(reason: object) -> str:
    """Returns what an export says of a layer that no bundle, or this one, gets."""
    return f"the layer for drafting is left out: {reason}"
