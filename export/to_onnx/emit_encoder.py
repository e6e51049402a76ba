"""The encoder of an encoder-decoder model in standard ONNX operators.

Its ports are those that `edgedec.models.graph` states of encoders.
"""

from __future__ import annotations

from edgedec.export.to_onnx.emit import MASKED, PortableEmitter
from edgedec.export.to_onnx.make import make_port, make_tensor
from edgedec.export.to_onnx.messages import ModelProto, TensorProto
from edgedec.models.blocks import source_kv
from edgedec.models.config import ModelConfig
from edgedec.models.encoder_weights import encoder_name
from edgedec.models.families import read_source, weight_shapes
from edgedec.models.graph import INPUT_IDS, KV_PARTS, POSITION_IDS, past_port, present_port
from edgedec.models.rope import rope_of


def emit_encoder(config: ModelConfig) -> ModelProto:
    """Returns the graph of the encoder; its weights are references to bytes not yet written."""
    assert config.encoder is not None
    emitter = _EncoderEmitter(config, config.encoder)
    read = read_source(emitter, config.encoder)
    for layer in range(config.n_layers):
        emitter.give_kv(source_kv(emitter, read, layer), layer)
    return emitter.model()


class _EncoderEmitter(PortableEmitter):
    """`Ops` of the recipe of an encoder, and of what the decoder's layers read of it."""

    def __init__(self, config: ModelConfig, encoder: ModelConfig) -> None:
        super().__init__(encoder, frozenset())
        self._decoder = config
        self._known = weight_shapes(config)
        self._shapes = {**self._known, **self._shapes}
        self._inputs = [make_port(INPUT_IDS, TensorProto.INT64, (1, "T"))]
        self._add_positions()

    def attention(self, q: str, k: str, v: str, layer: int) -> str:
        """Adds rotations, and an Attention of all rows to all."""
        c, stem = self._config, f"layers.{layer}.self_attn"
        rope = rope_of(c.layer(layer))
        rotated = [
            self._rotate(x, n_heads, f"{stem}.{part}_rotated", rope)
            for x, part, n_heads in ((q, "q", c.n_heads), (k, "k", c.n_kv_heads))
        ]
        return self._node(
            "Attention",
            [*rotated, v, *self._biases(c.layer(layer).window)],
            f"{stem}.attend",
            q_num_heads=c.n_heads,
            kv_num_heads=c.n_kv_heads,
            scale=c.attention_scale or None,
            softcap=c.attention_softcap or None,
        )

    def give_kv(self, rows: tuple[str, str], layer: int) -> None:
        """Makes keys and values of a layer of the decoder outputs, their heads apart."""
        c, shape = self._decoder, "source.heads"
        size = c.head_size_of(layer)
        self._constant(shape, [0, 0, c.n_kv_heads, size])
        for x, part in zip(rows, KV_PARTS, strict=True):
            stem = f"{x.removesuffix('.matmul')}.heads"
            apart = self._node("Reshape", [x, shape], stem)
            by_head = self._node("Transpose", [apart], f"{stem}.first", perm=[0, 2, 1, 3])
            port = present_port(past_port(layer, part))
            self.name_output(by_head, port, (1, c.n_kv_heads, "T", size))

    def _add_positions(self) -> None:
        for name, value in (("first", 0), ("step", 1)):
            tensor = make_tensor(f"positions.{name}", TensorProto.INT64, [], [value])
            self._initializers[tensor.name] = tensor
        self._constant("positions.axis", [0])
        n_rows = self._node("Shape", [INPUT_IDS], "positions.rows", start=1, end=2)
        stop = self._node("Squeeze", [n_rows, "positions.axis"], "positions.stop")
        places = self._node("Range", ["positions.first", stop, "positions.step"], "positions")
        self._node("Unsqueeze", [places, "positions.axis"], POSITION_IDS)

    def _biases(self, window: int) -> list[str]:
        """Returns what is added to the scores of attention, if anything."""
        if self._config.n_distance_buckets:
            return [self._by_distance()]
        return [self._within(window)] if window else []

    def _offsets(self) -> str:
        """Returns how far behind each row each other one comes [T, T]."""
        offsets = "positions.offsets"
        if offsets not in self._shared:
            self._shared.add(offsets)
            self._constant("positions.last", [1])
            column = self._node("Unsqueeze", ["positions", "positions.last"], "positions.column")
            self._node("Sub", ["positions", column], offsets)
        return offsets

    def _by_distance(self) -> str:
        """Returns the biases of each head [1, n_heads, T, T]."""
        bias = "distance.bias"
        if bias not in self._shared:
            self._shared.add(bias)
            zero = make_tensor("distance.zero", TensorProto.INT64, [], [self._config.max_distance])
            self._initializers[zero.name] = zero
            self._constant("axes.outer", [0, 1])
            self._constant("axis.first", [0])
            at = self._node("Add", [self._offsets(), zero.name], "distance.at")
            wide = self._node("Unsqueeze", [at, "axes.outer"], "distance.wide")
            self._node("Squeeze", [self._bias_of(wide), "axis.first"], bias)
        return bias

    def _within(self, window: int) -> str:
        """Returns the bias that hides what is ``window`` rows away or more [T, T]."""
        stem = f"window.{window}"
        if stem not in self._shared:
            self._shared.add(stem)
            limit = make_tensor(f"{stem}.limit", TensorProto.INT64, [], [window])
            self._initializers[limit.name] = limit
            hidden, seen = (
                self._float(f"{stem}.{name}", value, TensorProto.FLOAT)
                for name, value in (("hidden", MASKED), ("seen", 0.0))
            )
            away = self._node("Abs", [self._offsets()], f"{stem}.away")
            outside = self._node("GreaterOrEqual", [away, limit.name], f"{stem}.outside")
            self._node("Where", [outside, hidden, seen], f"{stem}.bias")
        return f"{stem}.bias"

    def _weight(self, name: str) -> str:
        return super()._weight(encoder_name(name, self._known))
