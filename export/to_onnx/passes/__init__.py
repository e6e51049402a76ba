"""From the portable to the fused graph: one pass per file, applied in the order of `pipeline`.

Every pass edits the model in place and leaves a valid graph that computes the same logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from edgedec.export.to_onnx.messages import ModelProto
from edgedec.export.to_onnx.passes.add_entry import add_entry
from edgedec.export.to_onnx.passes.add_layer_gates import add_layer_gates
from edgedec.export.to_onnx.passes.add_row_stats import add_row_stats
from edgedec.export.to_onnx.passes.fold_bias import fold_bias
from edgedec.export.to_onnx.passes.fold_norm import fold_norm
from edgedec.export.to_onnx.passes.fold_residual import fold_residual
from edgedec.export.to_onnx.passes.fuse_attention import fuse_attention
from edgedec.export.to_onnx.passes.fuse_experts import fuse_experts
from edgedec.export.to_onnx.passes.fuse_gate import fuse_gate
from edgedec.export.to_onnx.passes.fuse_head_norm import fuse_head_norm
from edgedec.export.to_onnx.passes.fuse_recurrence import fuse_recurrence
from edgedec.export.to_onnx.passes.merge_projections import merge_projections
from edgedec.export.to_onnx.passes.pack_matrices import pack_matrices
from edgedec.export.to_onnx.passes.remove_unused import remove_unused
from edgedec.models.config import ModelConfig
from edgedec.models.quant import QuantFormat

Pass = Callable[[ModelProto], None]


def pipeline(
    config: ModelConfig, formats: Mapping[str, QuantFormat], kv_format: str = "float16"
) -> tuple[tuple[str, Pass], ...]:
    """Returns the passes in order, named.

    Where layers go over all of a pass or none, they have no gates, and no entry.
    """
    recurrent: tuple[tuple[str, Pass], ...] = ()
    skipping: tuple[tuple[str, Pass], ...] = ()
    if config.can_skip_layers:
        skipping = (
            ("add_layer_gates", partial(add_layer_gates, config=config)),
            ("add_entry", partial(add_entry, config=config)),
        )
    if config.recurrent_layers:
        recurrent = (("fuse_recurrence", partial(fuse_recurrence, config=config)),)
    return (
        ("fuse_experts", partial(fuse_experts, config=config, formats=formats)),
        ("pack_matrices", partial(pack_matrices, formats=formats)),
        ("fold_bias", fold_bias),
        ("merge_projections", merge_projections),
        ("fold_norm", fold_norm),
        ("fuse_gate", fuse_gate),
        ("fuse_head_norm", partial(fuse_head_norm, config=config)),
        ("fuse_attention", partial(fuse_attention, config=config, kv_format=kv_format)),
        *recurrent,
        ("fold_residual", fold_residual),
        *skipping,
        *(() if config.is_embedder else (("add_row_stats", add_row_stats),)),
        ("remove_unused", remove_unused),
    )


def encoder_pipeline(formats: Mapping[str, QuantFormat]) -> tuple[tuple[str, Pass], ...]:
    """Returns the passes for the graph of an encoder, whose attention stays as it is."""
    return (
        ("pack_matrices", partial(pack_matrices, formats=formats)),
        ("fold_bias", fold_bias),
        ("merge_projections", merge_projections),
        ("fold_norm", fold_norm),
        ("fuse_gate", fuse_gate),
        ("fold_residual", fold_residual),
        ("remove_unused", remove_unused),
    )
