"""Puts a draft head that was trained before beside a model that is exported."""

from __future__ import annotations

from pathlib import PurePosixPath

import numpy as np

from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.export.heads.files import head_model, write_head_files
from edgedec.export.heads.head_file import HeadFile, model_digest
from edgedec.export.heads.mtp_graph import joined_model
from edgedec.export.heads.shipped_heads import DISTRIBUTION
from edgedec.export.phases.recipe_model import RecipeModel
from edgedec.models.blocks import head_weight
from edgedec.models.draft_heads import LIGHT_HEADS, HeadEntry
from edgedec.models.token_pairs import write_token_pairs

_SCHEME = "int8"
"""How heads of publishers are quantised."""

_TOKEN_PAIRS = "token_pairs.bin"


def attach_head(model: RecipeModel) -> None:
    """The draft head of a file, or the shipped one that was trained for this model.

    Raises:
        CheckpointError: The head that was asked for is of another model.
    """
    target = model.entry
    assert target is not None
    parent = BundleWeights(model.bundle_folder, target)
    digest = model_digest(parent, target.config)
    file = model.head_file or _shipped_file(model, digest)
    if file is None:
        return
    file.check_fits(digest, target.config)
    facts = file.facts
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


def attach_published(model: RecipeModel) -> None:
    """The draft head of a publisher's folder.

    Raises:
        CheckpointError: It is the head of another model, or damaged.
    """
    target, folder = model.entry, model.published_head
    assert target is not None
    assert folder is not None
    config, layers = folder.config(target.config), folder.layers(target.config.n_layers)
    parent = BundleWeights(model.bundle_folder, target)
    folder.check_tokens(parent, target.config)
    weights, pairs = folder.weights(config), folder.token_pairs(config)
    head = head_model(config, target, folder.kind, len(layers), _SCHEME)
    pairs_path = str(PurePosixPath(head.graph).with_name(_TOKEN_PAIRS))
    model.head = HeadEntry(
        kind=folder.kind,
        model="",
        head=head,
        hidden_layers=layers,
        corpus="",
        n_tokens=0,
        held_out=(),
        token_pairs=None if pairs is None else pairs_path,
    )
    ids = folder.rising_ids(target.config)
    if pairs is not None:
        write_token_pairs(model.bundle_folder / pairs_path, pairs)
    write_head_files(parent, model.head, weights, ids, model.bundle_folder)


def _shipped_file(model: RecipeModel, digest: str) -> HeadFile | None:
    """Returns the shipped head of the model of ``digest``, None if there is none; notes which."""
    for file in model.shipped_heads:
        if file.facts.model == digest:
            model.notes.append(
                f"with the draft head {file.path.stem} of {DISTRIBUTION}, which decoding uses "
                "where that is faster; --no-head leaves it out"
            )
            return file
    names = ", ".join(file.path.stem for file in model.shipped_heads)
    model.notes.append(
        f"without a draft head: that of {DISTRIBUTION} ({names}) is of another release or "
        f"quantisation of the model, its hash is not {digest[:12]}"
    )
    return None
