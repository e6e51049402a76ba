"""The files of a draft head, beside those of its model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.export.heads.graph import (
    SHARED,
    HeadWeight,
    borrowed_of,
    emit_head,
    head_contract,
    own_matrices,
    write_head,
)
from edgedec.export.heads.mtp_graph import write_joined_graph
from edgedec.export.quantising.quantise import SCHEMES
from edgedec.models.config import ModelConfig
from edgedec.models.draft_heads import HeadEntry, feature_width, head_shapes
from edgedec.models.head_ids import write_head_ids
from edgedec.models.model_entry import DRAFT_MODEL, ModelEntry
from edgedec.models.quant import FORMATS, QuantFormat

_ENDS = {"graph": ".onnx", "weights": ".bin", "ids": "_ids.bin"}


def head_model(
    config: ModelConfig, target: ModelEntry, kind: str, n_layers: int, scheme: str
) -> ModelEntry:
    """Returns what a manifest states of the model that a head of ``target`` is.

    n_layers: whose hidden states a row reads. scheme: how it is quantised, a key of `SCHEMES`.
    """
    width = feature_width(target.config, n_layers, kind, config.n_layers)
    formats = head_formats(target, config, width, kind, scheme)
    folder = PurePosixPath(target.graph).parent
    graph = emit_head(config, width, formats, target.contract.kv.format, kind)
    paths = {key: str(folder / f"{kind}{end}") for key, end in _ENDS.items()}
    is_shared = SHARED in formats and SHARED in borrowed_of(kind, target.config)
    shared = target.weights if is_shared else ()
    return ModelEntry(
        kind=DRAFT_MODEL,
        graph=paths["graph"],
        weights=(paths["weights"], *shared),
        contract=head_contract(graph, config, width, target.contract, kind),
        config=config,
        context=min(target.context, config.max_positions),
        tensor_formats={name: fmt.name for name, fmt in formats.items()},
        head_ids=paths["ids"],
    )


def head_formats(
    target: ModelEntry, config: ModelConfig, width: int, kind: str, scheme: str
) -> dict[str, QuantFormat]:
    """Returns the format of every matrix of a head; what it borrows has the target model's."""
    formats = dict.fromkeys(own_matrices(config, width, kind), FORMATS[SCHEMES[scheme] or "f32"])
    shapes, borrowed = head_shapes(config, width, kind), borrowed_of(kind, target.config)
    return formats | {
        name: target.format_of(theirs) for name, theirs in borrowed.items() if name in shapes
    }


def write_head_files(
    parent: BundleWeights,
    head: HeadEntry,
    weights: Mapping[str, HeadWeight],
    ids: npt.NDArray[np.integer],
    folder: Path,
) -> None:
    """Writes the files of ``head`` below ``folder``, that of the bundle.

    parent: the target model's weights, some of which the head shares. weights: all others, by name.
    ids: tokens that it can name.

    Raises:
        OSError: The disk is full.
    """
    model, width = head.head, head.head.contract.can.features
    formats = {name: FORMATS[fmt] for name, fmt in model.tensor_formats.items()}
    kv_format = model.contract.kv.format
    graph = emit_head(model.config, width, formats, kv_format, head.kind)
    borrowed = borrowed_of(head.kind, parent.entry.config)
    write_head(graph, weights, formats, parent, folder / model.graph, borrowed)
    assert model.head_ids is not None
    write_head_ids(folder / model.head_ids, ids.astype(np.int32))
    if head.joined is not None:
        write_joined_graph(folder, parent.entry, head, head.joined)
