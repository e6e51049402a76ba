"""A pass may begin in the middle of the decoder."""

from __future__ import annotations

from edgedec.export.to_onnx.graph import GraphEditor
from edgedec.export.to_onnx.make import make_attribute, make_node, make_port
from edgedec.export.to_onnx.messages import ModelProto, NodeProto, TensorProto
from edgedec.models.config import ModelConfig
from edgedec.models.graph import ENTRY, INPUT_IDS


def add_entry(model: ModelProto, config: ModelConfig) -> None:
    """Lets rows of the residual stream begin as given hidden states instead of embeddings.

    Before:
        x = Embed(ids, W uint8 [bytes])
    After:
        x = Concat(Embed(ids, W uint8 [bytes]), entry, axis=1)
        inputs: ..., entry f32 [1, E, hidden_size], empty in passes that begin with embeddings
    """
    editor = GraphEditor(model)
    for node in editor.nodes("Embed"):
        (stream,) = node.output
        embed = NodeProto()
        embed.CopyFrom(node)
        embed.output[0] = f"{stream}.embedded"
        joined = make_node("Concat", [embed.output[0], ENTRY], [stream], f"{ENTRY}.join")
        joined.attribute.append(make_attribute("axis", 1))
        editor.replace([node], [embed, joined])
    editor.finish()
    for value in model.graph.input:
        if value.name == INPUT_IDS:
            value.CopyFrom(make_port(INPUT_IDS, TensorProto.INT64, (1, "T-E")))
    shape = (1, "E", config.hidden_size)
    model.graph.input.append(make_port(ENTRY, TensorProto.FLOAT, shape))
