"""The layer that publishers add to a checkpoint for drafting; no text depends on it."""

from __future__ import annotations

from collections.abc import Mapping

from edgedec.models.config import ModelConfig
from edgedec.models.errors import EdgedecError
from edgedec.models.families import draft_layer
from edgedec.models.weights import SourceWeight, check_weights

DRAFT_LAYER = "mtp."
"""What names of weights begin with that belong to a layer for drafting."""

WeightPlaces = dict[str, tuple[tuple[int, ...], SourceWeight]]


def find_draft_layer(
    config: ModelConfig, stored: Mapping[str, tuple[int, ...]], is_gguf: bool
) -> WeightPlaces:
    """Returns shape and place of its weights; none where they are missing or of another form.

    stored: shape of every tensor of such a layer, by the checkpoint's own name.
    """
    places = {
        f"{DRAFT_LAYER}{name}": (weight.shape, weight.gguf if is_gguf else weight.hf)
        for name, weight in draft_layer(config).items()
    }
    try:
        check_weights(config.family, places, stored)
    except EdgedecError:
        return {}
    return places
