"""Early exits of a model: its own norm and some rows of its LM head, behind its first layers."""

from __future__ import annotations

from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.export.heads.files import head_model, write_head_files
from edgedec.export.heads.head_tokens import choose_head_ids
from edgedec.export.phases.recipe_model import RecipeModel
from edgedec.models.blocks import head_weight
from edgedec.models.draft_heads import EXIT, HeadEntry, head_config

_SCHEME = "int8"


def add_exit(model: RecipeModel) -> None:
    """The head of the model's early exits."""
    exit_options, target = model.config.exit, model.entry
    assert exit_options is not None
    assert target is not None
    size = exit_options.chosen_head_size(target.config.vocab_size)
    ids = choose_head_ids(model.source, size, exit_options.corpus, model.report)
    parent = BundleWeights(model.bundle_folder, target)
    config = head_config(target.config, len(ids), EXIT)
    weights = {
        "norm.weight": parent.vector("norm.weight"),
        "lm_head.weight": parent.matrix(head_weight(target.config), ids),
    }
    head = head_model(config, target, EXIT, 1, _SCHEME)
    model.head = HeadEntry(
        kind=EXIT,
        model="",
        head=head,
        hidden_layers=exit_options.layers,
        corpus="",
        n_tokens=0,
        held_out=(),
    )
    write_head_files(parent, model.head, weights, ids, model.bundle_folder)
