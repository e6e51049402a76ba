"""The KV cache of a fused graph holds numbers of another format."""

from __future__ import annotations

from edgedec.export.to_onnx.graph import GraphEditor
from edgedec.export.to_onnx.make import make_attribute
from edgedec.export.to_onnx.messages import ModelProto
from edgedec.export.to_onnx.passes.fuse_attention import kv_cache_inputs
from edgedec.models.config import ModelConfig
from edgedec.models.kv_formats import kv_panels_of

ATTRIBUTE = "kv_format"


def set_kv_format(model: ModelProto, config: ModelConfig, kv_format: str) -> None:
    """Makes every Attention keep ``kv_format``, and the graph's KV cache hold it.

    Attention(qkv, ..., k_cache, v_cache, kv_format=the kernels' number, none of 0)
    k_cache, v_cache [L, n_kv_heads, ...], see `KVPanels`
    """
    number = kv_panels_of(kv_format).index
    for node in GraphEditor(model).nodes("Attention"):
        others = [a for a in node.attribute if a.name != ATTRIBUTE]
        del node.attribute[:]
        node.attribute.extend(others)
        if number:
            node.attribute.append(make_attribute(ATTRIBUTE, number))
    new = {value.name: value for value in kv_cache_inputs(config, kv_format)}
    for value in model.graph.input:
        if value.name in new:
            value.CopyFrom(new[value.name])
