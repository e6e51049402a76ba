"""What decoding wants to know of logits rows is computed beside them."""

from __future__ import annotations

from edgedec.export.to_onnx.linear_node import DOMAIN
from edgedec.export.to_onnx.make import element_of, make_node, make_port
from edgedec.export.to_onnx.messages import ModelProto
from edgedec.models.graph import LOGITS, ROW_STATS, stats_port


def add_row_stats(model: ModelProto) -> None:
    """Adds the statistics of the logits to the outputs.

    Before:
        outputs: logits f32 [1, R, V]
    After:
        RowStats(logits) -> stats.argmax, stats.log_sum_exp, ...
        outputs: logits, stats.argmax i64 [R], stats.log_sum_exp f32 [R], ...
    """
    outputs = [
        make_port(stats_port(name), element_of(dtype), ("R", *sizes))
        for name, (dtype, sizes) in ROW_STATS.items()
    ]
    names = [value.name for value in outputs]
    node = make_node("RowStats", [LOGITS], names, name="row_stats", domain=DOMAIN)
    model.graph.node.append(node)
    model.graph.output.extend(outputs)
