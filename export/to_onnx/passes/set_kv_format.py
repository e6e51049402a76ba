"""The KV cache of a fused graph holds numbers of another format."""

from __future__ import annotations

import onnx
from onnx import helper

from edgedec.export.to_onnx.graph import GraphEditor
from edgedec.export.to_onnx.passes.fuse_attention import kv_cache_inputs
from edgedec.models.config import ModelConfig
from edgedec.models.graph import KV_FORMATS_OF, KVFormat

ATTRIBUTE = "kv_format"


def set_kv_format(model: onnx.ModelProto, config: ModelConfig, kv_format: KVFormat) -> None:
    """Makes every Attention keep ``kv_format``, and the graph's KV cache hold it.

    float16:
        Attention(qkv, ..., k_cache, v_cache)
        k_cache f16 [L, n_kv_heads, capacity / 16, head_size, 16],
        v_cache f16 [L, n_kv_heads, capacity, head_size]
    int8:
        Attention(qkv, ..., k_cache, v_cache, kv_format=1)
        k_cache, v_cache u8 [L, n_kv_heads, capacity / 16, bytes of a block]
    """
    for node in GraphEditor(model).nodes("Attention"):
        others = [a for a in node.attribute if a.name != ATTRIBUTE]
        del node.attribute[:]
        node.attribute.extend(others)
        if kv_format != "float16":
            number = KV_FORMATS_OF["panels"].index(kv_format)
            node.attribute.append(helper.make_attribute(ATTRIBUTE, number))
    new = {value.name: value for value in kv_cache_inputs(config, kv_format)}
    for value in model.graph.input:
        if value.name in new:
            value.CopyFrom(new[value.name])
