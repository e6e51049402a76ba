"""What decoding wants to know of logits rows is computed beside them."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from edgedec.export.to_onnx.linear_node import DOMAIN

N_TOP = 8
STATS = (
    ("argmax", TensorProto.INT64, ("R",)),
    ("log_sum_exp", TensorProto.FLOAT, ("R",)),
    ("entropy", TensorProto.FLOAT, ("R",)),
    ("top_ids", TensorProto.INT64, ("R", N_TOP)),
    ("top_logits", TensorProto.FLOAT, ("R", N_TOP)),
)
"""Outputs ``stats.NAME``, in the order of the operator's."""


def add_row_stats(model: onnx.ModelProto) -> None:
    """Adds the statistics of the logits to the outputs.

    Before:
        outputs: logits f32 [1, R, V]
    After:
        RowStats(logits) -> stats.argmax, stats.log_sum_exp, ...
        outputs: logits, stats.argmax i64 [R], stats.log_sum_exp f32 [R], ...
    """
    outputs = [
        helper.make_tensor_value_info(f"stats.{name}", element, shape)
        for name, element, shape in STATS
    ]
    names = [value.name for value in outputs]
    node = helper.make_node("RowStats", ["logits"], names, name="row_stats", domain=DOMAIN)
    model.graph.node.append(node)
    model.graph.output.extend(outputs)
