"""Offsets of keys in a fused graph (kernels/src/key_offsets.h)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from edgedec.export.kv_panels import kv_place
from edgedec.export.to_onnx.graph import attributes
from edgedec.export.to_onnx.make import tensor_of
from edgedec.export.to_onnx.messages import ModelProto
from edgedec.models.config import ModelConfig

_KEYS_PORT, _PORT = 6, 12
"""Inputs of Attention."""

_SUFFIX = ".self_attn.key_offsets"


def set_key_offsets(
    model: ModelProto, config: ModelConfig, offsets: Mapping[int, npt.NDArray[np.float32]]
) -> None:
    """Gives the nodes over these layers' keys their offsets, in place."""
    places = {(kv_place(config, i).caches[0], kv_place(config, i).layer): i for i in offsets}
    for node in model.graph.node:
        if node.op_type != "Attention":
            continue
        layer = places.get((node.input[_KEYS_PORT], attributes(node)["layer"]))
        if layer is not None:
            node.input.extend([""] * (_PORT - len(node.input)))
            node.input.append(_name(layer))
    model.graph.initializer.extend(tensor_of(o, _name(i)) for i, o in offsets.items())


def remove_key_offsets(model: ModelProto) -> None:
    """Takes what `set_key_offsets` gave away again."""
    for node in model.graph.node:
        if node.op_type == "Attention" and len(node.input) > _PORT:
            del node.input[_PORT:]
            while not node.input[-1]:
                del node.input[-1]
    kept = [t for t in model.graph.initializer if not t.name.endswith(_SUFFIX)]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


def _name(layer: int) -> str:
    return f"layers.{layer}{_SUFFIX}"
