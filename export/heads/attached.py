"""Puts a draft head that was trained before beside a model that is exported."""

from __future__ import annotations

import numpy as np

from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.export.heads.files import head_model, write_head_files
from edgedec.export.heads.head_file import model_digest
from edgedec.export.heads.mtp_graph import joined_model
from edgedec.export.phases.recipe_model import RecipeModel
from edgedec.models.blocks import head_weight
from edgedec.models.draft_heads import LIGHT_HEADS, HeadEntry


def attach_head(model: RecipeModel) -> None:
    """The draft head of a file.

    Raises:
        CheckpointError: It is the head of another model, and was asked for.
    """
    file, target = model.head_file, model.entry
    assert file is not None
    assert target is not None
    parent, facts = BundleWeights(model.bundle_folder, target), file.facts
    digest = model_digest(parent, target.config)
    if model.config.head is None and facts.model != digest:
        return  # what edgedec brings is of another release of the model
    file.check_fits(digest, target.config)
    config, n_layers = file.config(target.config), len(facts.hidden_layers)
    lm_head = parent.matrix(head_weight(target.config), file.head_ids.astype(np.int64))
    weights = file.weights(target.config) | {"lm_head.weight": lm_head}
    head = head_model(config, target, facts.kind, n_layers, facts.scheme)
    model.head = HeadEntry(
        kind=facts.kind,
        model="",
        head=head,
        hidden_layers=facts.hidden_layers,
        corpus=facts.corpus,
        n_tokens=facts.n_tokens,
        held_out=facts.held_out,
        joined=joined_model(target, head) if facts.kind in LIGHT_HEADS else None,
    )
    write_head_files(parent, model.head, weights, file.head_ids, model.bundle_folder)
