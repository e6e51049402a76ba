"""Puts the layer that a model's publisher trained for drafting beside the model."""

from __future__ import annotations

import dataclasses

import numpy as np

from edgedec.export.checkpoints.checkpoint import Checkpoint
from edgedec.export.checkpoints.draft_layer import DRAFT_LAYER
from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.export.heads.files import head_model, write_head_files
from edgedec.export.heads.graph import HeadWeight
from edgedec.export.phases.recipe_model import RecipeModel
from edgedec.export.quantising.quantise import SCHEMES, quantize_rows
from edgedec.models.draft_heads import MODEL_NORM, MTP_LAYER, HeadEntry, head_config
from edgedec.models.families import draft_layer
from edgedec.models.quant import FORMATS, PlainTensor
from edgedec.models.weights import float_rows

_SCHEME = "int8"
_ROWS = 4096


def attach_draft_layer(model: RecipeModel) -> None:
    """The layer for drafting, as a draft head of its own."""
    target, source = model.entry, model.draft_layer
    assert target is not None
    assert source is not None
    n_tokens = target.config.n_logits
    config = head_config(target.config, n_tokens, MTP_LAYER)
    parent = BundleWeights(model.bundle_folder, target)
    weights: dict[str, HeadWeight] = {
        name: _quantised(source, DRAFT_LAYER + name, weight.shape[0])
        if len(weight.shape) == 2
        else source.vector(DRAFT_LAYER + name)
        for name, weight in draft_layer(source.config).items()
    }
    weights[MODEL_NORM] = parent.vector("norm.weight")
    model.head = HeadEntry(
        kind=MTP_LAYER,
        model="",
        head=head_model(config, target, MTP_LAYER, 1, _SCHEME),
        hidden_layers=(target.config.n_layers,),
        corpus="",
        n_tokens=0,
        held_out=(),
    )
    write_head_files(parent, model.head, weights, np.arange(n_tokens), model.bundle_folder)


def _quantised(source: Checkpoint, name: str, n_rows: int) -> PlainTensor:
    """Returns a matrix in the format of `_SCHEME`, which is never whole in floats."""
    fmt = FORMATS[SCHEMES[_SCHEME] or ""]
    parts = [
        quantize_rows(float_rows(source, name, start, min(start + _ROWS, n_rows)), fmt)
        for start in range(0, n_rows, _ROWS)
    ]
    source.release()
    whole = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in dataclasses.fields(PlainTensor)
        if field.name != "format"
    }
    return PlainTensor(fmt, **whole)
