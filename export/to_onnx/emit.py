"""The portable graph: a recipe written down in standard ONNX operators (opset 23).

Inputs:  input_ids int64 [1, T]; position_ids int64 [1, T]; attention_bias f32 [1, 1, T, P + T],
         0 where a row may look and -inf (or a large negative) where not, so that chains and trees
         are the same graph; logit_rows int64 [R]; past_key_values.{i}.key/.value f32
         [1, n_kv_heads, P, head_size], rotated.
Outputs: logits f32 [1, R, V]; present.{i}.key/.value f32 [1, n_kv_heads, P + T, head_size];
         hidden.{i} f32 [1, T, hidden_size] for the chosen layers.
Matrices are stored [K, N], the transpose of the checkpoint's, so a tied head is one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from edgedec.export.to_onnx.graph import external_tensor
from edgedec.models.blocks import Ops, decoder, weight_shapes
from edgedec.models.config import ModelConfig
from edgedec.models.errors import ConfigError

OPSET = 23
IR_VERSION = 11
ROPE_COS = "rope.cos"
ROPE_SIN = "rope.sin"


def emit_portable(
    config: ModelConfig, context: int, hidden_layers: Sequence[int] = ()
) -> onnx.ModelProto:
    """Returns the portable graph; its weights are references to bytes not yet written.

    Args:
        context: positions the rotation tables cover.
        hidden_layers: layers (0: embeddings) whose residual stream becomes an output.

    Raises:
        ConfigError: a hidden layer the model does not have.
    """
    for layer in hidden_layers:
        if not 0 <= layer <= config.n_layers:
            raise ConfigError(f"hidden layer {layer}: expected 0 to {config.n_layers}")
    emitter = PortableEmitter(config, context, frozenset(hidden_layers))
    emitter.name_output(decoder(emitter, config), "logits", (1, "R", config.n_logits))
    return emitter.model()


class PortableEmitter(Ops[str]):
    """`Ops` over names of graph values, each [1, T, features]."""

    def __init__(self, config: ModelConfig, context: int, hidden_layers: frozenset[int]) -> None:
        self._config = config
        self._hidden_layers = hidden_layers
        self._shapes = weight_shapes(config)
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._outputs: list[onnx.ValueInfoProto] = []
        self._inputs = [
            _value("input_ids", TensorProto.INT64, (1, "T")),
            _value("position_ids", TensorProto.INT64, (1, "T")),
            _value("attention_bias", TensorProto.FLOAT, (1, 1, "T", "P+T")),
            _value("logit_rows", TensorProto.INT64, ("R",)),
        ]
        for name in (ROPE_COS, ROPE_SIN):
            dims = (context, config.head_size // 2)
            self._initializers[name] = external_tensor(name, TensorProto.FLOAT, dims)

    def embed(self, weight: str) -> str:
        columns = self._node("Gather", [self._weight(weight), "input_ids"], "embed_columns", axis=1)
        return self._node("Transpose", [columns], "embed", perm=[1, 2, 0])

    def rms_norm(self, x: str, weight: str) -> str:
        epsilon = self._config.rms_norm_eps
        return self._node(
            "RMSNormalization",
            [x, self._weight(weight)],
            weight.removesuffix(".weight"),
            axis=-1,
            epsilon=epsilon,
        )

    def linear(self, x: str, weight: str, bias: str | None = None) -> str:
        stem = weight.removesuffix(".weight")
        if weight == "embed_tokens.weight":
            stem = "lm_head"
        y = self._node("MatMul", [x, self._weight(weight)], f"{stem}.matmul")
        if bias is None:
            return y
        return self._node("Add", [y, self._weight(bias)], f"{stem}.bias_add")

    def attention(self, q: str, k: str, v: str, layer: int) -> str:
        config, stem = self._config, f"layers.{layer}.self_attn"
        past = [self._kv_input(layer, "key"), self._kv_input(layer, "value")]
        present = [self._kv_output(layer, "key"), self._kv_output(layer, "value")]
        attended = f"{stem}.attend"
        attend = helper.make_node(
            "Attention",
            [
                self._rotate(q, config.n_heads, f"{stem}.q_rotated"),
                self._rotate(k, config.n_kv_heads, f"{stem}.k_rotated"),
                v,
                "attention_bias",
                *past,
            ],
            [attended, *present],
            name=attended,
            q_num_heads=config.n_heads,
            kv_num_heads=config.n_kv_heads,
        )
        self._nodes.append(attend)
        return attended

    def gate(self, gate: str, up: str) -> str:
        stem = gate.removesuffix(".matmul")
        sigmoid = self._node("Sigmoid", [gate], f"{stem}.sigmoid")
        silu = self._node("Mul", [gate, sigmoid], f"{stem}.silu")
        return self._node("Mul", [silu, up], f"{stem}.gated")

    def add(self, a: str, b: str) -> str:
        return self._node("Add", [a, b], f"{b.removesuffix('.matmul')}.residual_add")

    def select_rows(self, x: str) -> str:
        return self._node("Gather", [x, "logit_rows"], "selected_rows", axis=1)

    def hidden(self, x: str, layer: int) -> None:
        if layer in self._hidden_layers:
            y = self._node("Identity", [x], f"hidden.{layer}")
            self.name_output(y, y, (1, "T", self._config.hidden_size))

    def name_output(self, value: str, name: str, dims: Sequence[int | str]) -> None:
        """Makes ``value``, which the latest node made, the graph output ``name``."""
        node = self._nodes[-1]
        assert node.output[0] == value
        node.output[0] = name
        self._outputs.append(_value(name, TensorProto.FLOAT, dims))

    def model(self) -> onnx.ModelProto:
        """Returns the finished model."""
        graph = helper.make_graph(
            self._nodes,
            self._config.family,
            self._inputs,
            self._outputs,
            list(self._initializers.values()),
        )
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edgedec"
        )

    def _node(self, op_type: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def _weight(self, name: str) -> str:
        if name not in self._initializers:
            dims = self._shapes[name][::-1]
            self._initializers[name] = external_tensor(name, TensorProto.FLOAT, dims)
        return name

    def _rotate(self, x: str, n_heads: int, name: str) -> str:
        inputs = [x, ROPE_COS, ROPE_SIN, "position_ids"]
        return self._node("RotaryEmbedding", inputs, name, num_heads=n_heads)

    def _kv_input(self, layer: int, part: str) -> str:
        name = f"past_key_values.{layer}.{part}"
        self._inputs.append(self._kv_value(name, "P"))
        return name

    def _kv_output(self, layer: int, part: str) -> str:
        name = f"present.{layer}.{part}"
        self._outputs.append(self._kv_value(name, "P+T"))
        return name

    def _kv_value(self, name: str, length: str) -> onnx.ValueInfoProto:
        dims = (1, self._config.n_kv_heads, length, self._config.head_size)
        return _value(name, TensorProto.FLOAT, dims)


def _value(name: str, element: int, dims: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, dims)
