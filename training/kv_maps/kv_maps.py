"""Linear maps to keys and values, from hidden states or another model's: fitted, then written.

Source: KV Prediction (arXiv 2410.08391), with the maps in closed form; from hidden states, the
model's own first layers are the auxiliary model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edgedec.export.kv_panels import kv_place
from edgedec.export.quantising.quantise import quantize_rows
from edgedec.export.to_onnx.emit import IR_VERSION, OPSET
from edgedec.export.to_onnx.linear_node import DOMAIN, LinearMatrix, LinearNode
from edgedec.export.to_onnx.make import (
    element_of,
    make_graph,
    make_model,
    make_node,
    make_opset,
    make_port,
    tensor_of,
)
from edgedec.export.to_onnx.messages import (
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    save_model,
)
from edgedec.export.to_onnx.passes.fuse_attention import kv_cache_inputs
from edgedec.kernels.cpu import pack, packed_nbytes
from edgedec.models.config import ModelConfig
from edgedec.models.errors import ConfigError
from edgedec.models.graph import PARENTS, POSITION_IDS
from edgedec.models.kv_formats import kv_panels_of
from edgedec.models.kv_maps import HIDDEN, WRITTEN
from edgedec.models.quant import FORMATS
from edgedec.models.rope import rope_names, rope_of

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

RIDGE = 3e-3
"""Penalty on the weights, in units of the mean square of a feature."""

MAP_FORMAT = FORMATS["q8_0"]
_MIN_DEVIATION = 1e-3
_PAGE_BYTES = 4096
_SCALED = "scaled"


class RidgeSums:
    """The sums that a ridge regression needs, gathered a few rows at a time.

    Memory: (D + 1) * (D + 1 + M) float64 for D features and M targets, however many rows.
    """

    def __init__(self, n_features: int, n_targets: int) -> None:
        n = n_features + 1  # the last is the bias
        self._features = np.zeros((n, n))
        self._targets = np.zeros((n, n_targets))
        self._squares = np.zeros(n_targets)
        self.n_rows = 0

    def add(self, features: Float32, targets: Float32) -> None:
        """Takes rows in. Shapes: [T, D], [T, M]."""
        x = np.concatenate([features, np.ones((len(features), 1), np.float32)], axis=1)
        self._features += x.T @ x
        self._targets += x.T @ targets
        self._squares += np.square(targets, dtype=np.float64).sum(axis=0)
        self.n_rows += len(features)

    def arrays(self, name: str) -> dict[str, npt.NDArray[np.float64]]:
        """Returns all that `restore` needs, each under a key that begins with ``name``."""
        return {
            f"{name}_features": self._features,
            f"{name}_targets": self._targets,
            f"{name}_squares": self._squares,
            f"{name}_rows": np.array(float(self.n_rows)),
        }

    def restore(self, arrays: Mapping[str, npt.NDArray[Any]], name: str) -> None:
        """Takes the sums from `arrays`.

        Raises:
            KeyError: There are none called ``name``.
            ValueError: They are of another size.
        """
        self._features[:] = arrays[f"{name}_features"]
        self._targets[:] = arrays[f"{name}_targets"]
        self._squares[:] = arrays[f"{name}_squares"]
        self.n_rows = int(arrays[f"{name}_rows"])

    def check(self) -> None:
        """Raises a ConfigError where there were fewer rows than features."""
        needed = 2 * len(self._features)
        if self.n_rows < needed:
            raise ConfigError(
                f"the corpus has {self.n_rows} tokens, too few to fit maps from "
                f"{len(self._features) - 1} features: expected at least {needed}, better ten times "
                "that"
            )

    def solve(self, ridge: float = RIDGE) -> tuple[Float32, Float32]:
        """Returns weights [M, D] and biases [M] of the least penalised squared error."""
        d = len(self._features) - 1
        penalised = self._features.copy()
        diagonal = np.einsum("ii->i", penalised)
        diagonal[:d] += ridge * diagonal[:d].mean()
        weights = np.linalg.solve(penalised, self._targets)
        return weights[:d].T.astype(np.float32), weights[d].astype(np.float32)

    def unexplained(self, weights: Float32, bias: Float32) -> float:
        """Returns the share of the targets' variance that the maps miss, over all rows."""
        solution = np.concatenate([weights, bias[:, None]], axis=1).astype(np.float64)
        errors = (
            self._squares
            - 2 * np.einsum("mi,im->m", solution, self._targets)
            + np.einsum("mi,im->m", solution, self._features @ solution.T)
        )
        means = self._targets[-1] / self.n_rows
        return float(errors.sum() / (self._squares - self.n_rows * means**2).sum())


@dataclass(frozen=True)
class LayerMaps:
    """Maps of one layer: weights [2 * n_kv_heads * head_size, D] for keys, then values; biases.

    first: of the D numbers they read, among those that the graph is given.
    """

    layer: int
    weights: Float32
    bias: Float32
    first: int = 0


@dataclass(frozen=True)
class Scales:
    """What rows of another model's keys and values are brought to one size with: [D] each.

    Keys have numbers a hundred times as large as others; no row of codes would hold both.
    """

    mean: Float32
    deviation: Float32

    @classmethod
    def of(cls, rows: Float32) -> Self:
        """Returns those of a text. Shapes: rows [T, D]."""
        mean = rows.mean(axis=0, dtype=np.float64)
        deviation = rows.std(axis=0, dtype=np.float64)
        least = _MIN_DEVIATION * max(float(deviation.mean()), _MIN_DEVIATION)
        return cls(mean.astype(np.float32), np.maximum(deviation, least).astype(np.float32))

    def apply(self, rows: Float32) -> Float32:
        """Returns ``rows`` of about mean 0 and deviation 1."""
        result: Float32 = (rows - self.mean) / self.deviation
        return result


def write_kv_maps(
    folder: Path,
    stem: str,
    config: ModelConfig,
    kv_format: str,
    maps: Sequence[LayerMaps],
    scales: Scales | None = None,
) -> tuple[str, str]:
    """Writes graph and weights of ``maps`` into ``folder``; returns the names of both files.

    The graph takes hidden states and writes keys and values where attention would:

        k, v = Split(Linear(hidden, ones, -, Wk, bk, Wv, bv))
        Attention(Concat(k, k, v), ..., k_cache, v_cache, layer=i) -> nobody

    or, with ``scales``, takes another model's keys and values for hidden states, and each layer
    those it reads of them:

        x = Slice(Mul(Sub(hidden, mean), 1 / deviation), first, first + D)

    for each layer: attention writes rows first, and what it then makes of one query a KV head is
    left: by count of multiplications a hundredth of prefill. Its one output says how many rows.
    """
    writer = _Writer(config, kv_format, f"{stem}.bin", scales)
    for of_layer in maps:
        writer.add(of_layer)
    (folder / f"{stem}.bin").write_bytes(writer.weights)
    save_model(writer.model(), folder / f"{stem}.onnx")
    return f"{stem}.onnx", f"{stem}.bin"


class _Writer:
    """The graph of maps as it grows, and the bytes of its weights."""

    def __init__(
        self,
        config: ModelConfig,
        kv_format: str,
        weights_name: str,
        scales: Scales | None,
    ) -> None:
        self._config = config
        self._kv_format = kv_format
        self._weights_name = weights_name
        self._nodes: list[NodeProto] = []
        self._initializers: dict[str, TensorProto] = {}
        self._tables: dict[str, ValueInfoProto] = {}
        self.weights = bytearray()
        self._scales = scales
        self._width = config.hidden_size if scales is None else len(scales.mean)
        if scales is None:
            self._store("norm", np.ones(self._width, np.float32))
        else:
            self._scale(scales)

    def add(self, maps: LayerMaps) -> None:
        """Adds the maps of one layer."""
        config, stem = self._config, f"layers.{maps.layer}"
        half = len(maps.weights) // 2
        matrices = tuple(
            self._matrix(f"{stem}.{name}", maps.weights[part], maps.bias[part])
            for name, part in (("key_map", slice(half)), ("value_map", slice(half, None)))
        )
        linear = self._linear(f"{stem}.kv", maps, matrices)
        tables = rope_names(config, rope_of(config.layer(maps.layer)))
        for name in tables:
            self._tables[name] = make_port(
                name, TensorProto.FLOAT, ("positions", config.head_size // 2)
            )
        place = kv_place(config, maps.layer)
        window = config.layer(maps.layer).window
        attributes: dict[str, Any] = {"window": window} if window else {}
        if number := kv_panels_of(self._kv_format).index:
            attributes["kv_format"] = number
        keys, values = f"{stem}.keys", f"{stem}.values"
        split = make_node("Split", [linear.output], [keys, values], axis=-1, num_outputs=2)
        joined = make_node("Concat", [keys, keys, values], [f"{stem}.qkv"], axis=-1)
        append = make_node(
            "Attention",
            [f"{stem}.qkv", POSITION_IDS, PARENTS, place.sequences, *tables, *place.caches],
            [f"{stem}.attended"],
            name=f"{stem}.append",
            domain=DOMAIN,
            layer=place.layer,
            n_heads=config.n_kv_heads,
            n_kv_heads=config.n_kv_heads,
            head_size=config.head_size,
            **attributes,
        )
        self._nodes += [linear.write(), split, joined, append]

    def model(self) -> ModelProto:
        """Returns the finished graph."""
        written = make_node("Shape", [HIDDEN], [WRITTEN], name=WRITTEN, start=1, end=2)
        inputs = [
            make_port(HIDDEN, TensorProto.FLOAT, (1, "T", self._width)),
            make_port(POSITION_IDS, TensorProto.INT64, (1, "T")),
            make_port(PARENTS, TensorProto.INT64, (1, "T")),
            *kv_cache_inputs(self._config, self._kv_format),
            *self._tables.values(),
        ]
        output = make_port(WRITTEN, TensorProto.INT64, (1,))
        graph = make_graph(
            [*self._nodes, written], "kv_maps", inputs, [output], list(self._initializers.values())
        )
        opsets = [make_opset("", OPSET), make_opset(DOMAIN, 1)]
        return make_model(graph, opsets=opsets, ir_version=IR_VERSION)

    def _scale(self, scales: Scales) -> None:
        """Adds what all maps read: rows of about mean 0 and deviation 1."""
        self._store("mean", scales.mean)
        self._store("inverse_deviation", 1 / scales.deviation)
        self._nodes += [
            make_node("Sub", [HIDDEN, "mean"], ["centred"], name="centre"),
            make_node("Mul", ["centred", "inverse_deviation"], [_SCALED], name="scale"),
        ]

    def _linear(
        self, output: str, maps: LayerMaps, matrices: tuple[LinearMatrix, ...]
    ) -> LinearNode:
        """Returns the maps of one layer over what they read."""
        width = maps.weights.shape[1]
        if self._scales is None:
            return LinearNode(output, HIDDEN, width, matrices, "norm", self._config.rms_norm_eps)
        ends = [f"{output}.{name}" for name in ("first", "stop", "axis")]
        for name, end in zip(ends, (maps.first, maps.first + width, -1), strict=True):
            # Small enough to lie in the graph, where the runtime folds it.
            self._initializers[name] = tensor_of(np.array([end], np.int64), name)
        read = f"{output}.read"
        self._nodes.append(make_node("Slice", [_SCALED, *ends], [read], name=read))
        return LinearNode(output, read, width, matrices)

    def _matrix(self, stem: str, weights: Float32, bias: Float32) -> LinearMatrix:
        plain = quantize_rows(weights, MAP_FORMAT)
        packed = pack(
            MAP_FORMAT.index, plain.codes, plain.scale, plain.minimum, plain.sub_scale,
            plain.sub_minimum,
        )  # fmt: skip
        assert packed.nbytes == packed_nbytes(MAP_FORMAT.index, *weights.shape)
        self._store(f"{stem}.weight", packed)
        self._store(f"{stem}.bias", bias)
        return LinearMatrix(f"{stem}.weight", MAP_FORMAT.index, len(weights), f"{stem}.bias")

    def _store(self, name: str, values: npt.NDArray[Any]) -> None:
        """Adds an initializer, its bytes on a page of their own."""
        self.weights += bytes(-len(self.weights) % _PAGE_BYTES)
        values = np.ascontiguousarray(values)
        element = element_of(values.dtype)
        tensor = TensorProto(name=name, data_type=element, dims=values.shape)
        tensor.data_location = TensorProto.EXTERNAL
        place = {
            "location": self._weights_name,
            "offset": str(len(self.weights)),
            "length": str(values.nbytes),
        }
        for key, value in place.items():
            tensor.external_data.add(key=key, value=value)
        self.weights += values.tobytes()
        self._initializers[name] = tensor
