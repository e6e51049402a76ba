"""What decoding wants to know of logits rows is computed beside them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from edgedec.export.to_onnx.linear_node import DOMAIN
from edgedec.models.graph import LOGITS, ROW_STATS, stats_port


def add_row_stats(model: onnx.ModelProto) -> None:
    """Adds the statistics of the logits to the outputs.

    Before:
        outputs: logits f32 [1, R, V]
    After:
        RowStats(logits) -> stats.argmax, stats.log_sum_exp, ...
        outputs: logits, stats.argmax i64 [R], stats.log_sum_exp f32 [R], ...
    """
    outputs = [
        helper.make_tensor_value_info(
            stats_port(name), helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), ("R", *sizes)
        )
        for name, (dtype, sizes) in ROW_STATS.items()
    ]
    names = [value.name for value in outputs]
    node = helper.make_node("RowStats", [LOGITS], names, name="row_stats", domain=DOMAIN)
    model.graph.node.append(node)
    model.graph.output.extend(outputs)
