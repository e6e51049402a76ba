"""The fused graph of a draft head, and its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.export.kv_panels import kv_panels
from edgedec.export.quantising.quantise import quantize_rows
from edgedec.export.to_onnx.emit import PortableEmitter
from edgedec.export.to_onnx.graph import place, port_names
from edgedec.export.to_onnx.make import make_port
from edgedec.export.to_onnx.messages import ModelProto, TensorProto, save_model
from edgedec.export.to_onnx.passes.add_layer_gates import add_layer_gates
from edgedec.export.to_onnx.passes.add_row_stats import add_row_stats
from edgedec.export.to_onnx.passes.fold_bias import fold_bias
from edgedec.export.to_onnx.passes.fold_norm import fold_norm
from edgedec.export.to_onnx.passes.fold_residual import fold_residual
from edgedec.export.to_onnx.passes.fuse_attention import fuse_attention
from edgedec.export.to_onnx.passes.fuse_experts import fuse_experts
from edgedec.export.to_onnx.passes.fuse_gate import fuse_gate
from edgedec.export.to_onnx.passes.fuse_head_norm import fuse_head_norm
from edgedec.export.to_onnx.passes.merge_projections import merge_projections
from edgedec.export.to_onnx.passes.pack_matrices import pack_matrices
from edgedec.export.to_onnx.passes.remove_unused import remove_unused
from edgedec.kernels.cpu import pack
from edgedec.models.blocks import head_weight
from edgedec.models.config import ModelConfig
from edgedec.models.draft_heads import (
    DFLASH,
    EAGLE,
    EAGLE3,
    HYDRA,
    LIGHT_HEADS,
    MTP_LAYER,
    OUTPUT,
    PARD2,
    head_recipe,
    head_shapes,
)
from edgedec.models.graph import FEATURES, LOGITS, MAX_SEQUENCES, Capabilities, GraphContract
from edgedec.models.quant import PlainTensor, QuantFormat

Float32 = npt.NDArray[np.float32]
HeadWeight = Float32 | PlainTensor
"""A weight of a head, which may be quantised already."""

SHARED = "embed_tokens.weight"
"""The weight that a head has from its model: the same bytes of the same file."""

BORROWED = {SHARED: SHARED}
"""Weights that a head has from its model -> what they are called there."""

_PAGE_BYTES = 4096


class HeadEmitter(PortableEmitter):
    """A `PortableEmitter` whose rows have features."""

    def __init__(self, config: ModelConfig, width: int, kind: str) -> None:
        super().__init__(config, frozenset({OUTPUT}))
        self._shapes = head_shapes(config, width, kind)

    def features(self) -> str:
        """Returns the graph's input of them."""
        return FEATURES

    def beside_features(self, x: str) -> str:
        """Adds a Concat of the features."""
        return self._node("Concat", [x, FEATURES], "beside_features", axis=-1)

    def side_by_side(self, a: str, b: str) -> str:
        """Adds a Concat."""
        return self._node("Concat", [a, b], f"{a}.side_by_side", axis=-1)

    def first(self, x: str, n: int) -> str:
        """Adds a Slice of the last axis."""
        stem = f"{x}.first_{n}"
        for name, value in (("start", 0), ("stop", n), ("axis", -1)):
            self._constant(f"{stem}.{name}", [value])
        inputs = [x, f"{stem}.start", f"{stem}.stop", f"{stem}.axis"]
        return self._node("Slice", inputs, stem)

    def of_block(self, x: str) -> str:
        """Adds a Slice of the features, and a Mul by it."""
        return self._node("Mul", [x, self._flag(1)], f"{x}.of_block")

    def row_before(self, x: str) -> str:
        """Adds a Pad that moves the rows, and a Mul by a Slice of the features."""
        self._constant("row_before.pads", [0, 1, 0, 0, -1, 0])
        moved = self._node("Pad", [x, "row_before.pads"], f"{x}.moved")
        return self._node("Mul", [moved, self._flag(2)], f"{x}.before")

    def scale_groups(self, x: str, scales: str, size: int) -> str:
        """Adds a Mul between Reshapes."""
        for name, last in (("whole", (-1,)), ("groups", (-1, size)), ("scales", (-1, 1))):
            self._constant(f"scale_groups.{name}", [0, 0, *last])
        groups = self._node("Reshape", [x, "scale_groups.groups"], f"{x}.groups")
        of_group = self._node("Reshape", [scales, "scale_groups.scales"], f"{scales}.of_group")
        scaled = self._node("Mul", [groups, of_group], f"{x}.scaled_groups")
        return self._node("Reshape", [scaled, "scale_groups.whole"], f"{x}.scaled_whole")

    def _flag(self, n: int) -> str:
        """Adds a Slice of the features: the last but ``n`` - 1."""
        name, stop = f"flag_{n}", 1 - n if n > 1 else 2**31 - 1
        for part, value in (("start", -n), ("stop", stop), ("axis", -1)):
            self._constant(f"{name}.{part}", [value])
        return self._node(
            "Slice", [FEATURES, *(f"{name}.{p}" for p in ("start", "stop", "axis"))], name
        )


def emit_head(
    config: ModelConfig,
    width: int,
    formats: Mapping[str, QuantFormat],
    kv_format: str,
    kind: str = EAGLE,
) -> ModelProto:
    """Returns the fused graph of a head; its weights are references to bytes not yet written.

    width: numbers that a row reads beside its token. formats: of every matrix, by name.
    """
    emitter = HeadEmitter(config, width, kind)
    logits = head_recipe(emitter, config, kind)
    emitter.name_output(logits, LOGITS, (1, "R", config.n_logits))
    model = emitter.model()
    is_gated = kind in LIGHT_HEADS
    for run in (
        partial(fuse_experts, config=config, formats=formats),
        partial(pack_matrices, formats=formats),
        fold_bias,
        merge_projections,
        fold_norm,
        fuse_gate,
        partial(fuse_head_norm, config=config),
        partial(fuse_attention, config=config, kv_format=kv_format),
        fold_residual,
        *((partial(add_layer_gates, config=config),) if is_gated else ()),
        add_row_stats,
        remove_unused,
    ):
        run(model)
    features = make_port(FEATURES, TensorProto.FLOAT, (1, "T", width))
    model.graph.input.append(features)
    return model


def head_contract(
    model: ModelProto,
    config: ModelConfig,
    width: int,
    parent: GraphContract,
    kind: str = EAGLE,
) -> GraphContract:
    """Returns what the graph of a head takes, gives and can do, for a model like ``parent``."""
    has_outputs = config.n_candidates > 0 or kind in (EAGLE, EAGLE3, HYDRA, MTP_LAYER)
    can = Capabilities(
        trees=not config.is_bidirectional,
        blocks=config.is_bidirectional,
        gates=kind in LIGHT_HEADS,
        row_stats=True,
        hidden=(OUTPUT,) if has_outputs else (),
        features=width,
        n_sequences=MAX_SEQUENCES,
    )
    return contract_like(parent, model, config, can)


def contract_like(
    parent: GraphContract, model: ModelProto, config: ModelConfig, can: Capabilities
) -> GraphContract:
    """Returns the contract of a fused graph for whom ``parent`` is for."""
    return dataclasses.replace(
        parent,
        inputs=port_names(model.graph.input),
        outputs=port_names(model.graph.output),
        kv=kv_panels(config, parent.kv.format),
        can=can,
    )


def write_head(
    model: ModelProto,
    weights: Mapping[str, HeadWeight],
    formats: Mapping[str, QuantFormat],
    parent: BundleWeights,
    graph: Path,
    borrowed: Mapping[str, str] = BORROWED,
    is_shared: bool = True,
) -> None:
    """Writes ``model`` to ``graph``, and its own weights beside it as ``.bin``.

    weights: all but those ``borrowed`` of ``parent``, by their names here and there. is_shared:
    these are the same bytes of the same file; else copies.

    Raises:
        OSError: The disk is full.
    """
    values_file = graph.with_suffix(".bin")
    with values_file.open("wb") as file:
        for tensor in model.graph.initializer:
            if tensor.data_location != TensorProto.EXTERNAL:
                continue
            theirs = borrowed.get(tensor.name)
            if theirs is not None and is_shared:
                place(tensor, parent.place(theirs))
                continue
            if theirs is not None:
                values: npt.NDArray[np.generic] = parent.packed(theirs).data
            else:
                values = _values(tensor, weights, formats)
            file.write(bytes(-file.tell() % _PAGE_BYTES))
            entries = {
                "location": values_file.name,
                "offset": str(file.tell()),
                "length": str(values.nbytes),
            }
            place(tensor, entries)
            file.write(values.tobytes())
    save_model(model, graph)


def _values(
    tensor: TensorProto, weights: Mapping[str, HeadWeight], formats: Mapping[str, QuantFormat]
) -> npt.NDArray[np.generic]:
    """Returns what the bytes of a weight stand for: packed, or as it is."""
    values, fmt = weights[tensor.name], formats.get(tensor.name)
    if isinstance(values, PlainTensor):
        return np.concatenate([_packed(part) for part in _matrices(values, tensor)])
    if tensor.data_type != TensorProto.UINT8 or fmt is None:
        return np.ascontiguousarray(values)
    return pack(fmt.index, values) if fmt.is_float else _packed(quantize_rows(values, fmt))


def _matrices(plain: PlainTensor, tensor: TensorProto) -> Iterator[PlainTensor]:
    """Yields the matrices that lie below each other in ``plain``, those of experts."""
    n = tensor.dims[0] if len(tensor.dims) > 1 else 1
    step = len(plain.codes) // n
    for start in range(0, n * step, step):
        rows = slice(start, start + step)
        yield dataclasses.replace(
            plain,
            codes=plain.codes[rows],
            scale=plain.scale[rows],
            minimum=plain.minimum[rows],
            sub_scale=plain.sub_scale[rows],
            sub_minimum=plain.sub_minimum[rows],
        )


def _packed(plain: PlainTensor) -> npt.NDArray[np.uint8]:
    fmt = plain.format
    return pack(
        fmt.index, plain.codes, plain.scale, plain.minimum, plain.sub_scale, plain.sub_minimum
    )


def own_matrices(config: ModelConfig, width: int, kind: str = EAGLE) -> tuple[str, ...]:
    """Returns the matrices that a head has for itself."""
    shapes, borrowed = head_shapes(config, width, kind).items(), borrowed_of(kind, config)
    return tuple(name for name, shape in shapes if len(shape) == 2 and name not in borrowed)


def borrowed_of(kind: str, model: ModelConfig) -> dict[str, str]:
    """Returns what weights a head of this ``kind`` has from ``model``, and their names there."""
    if kind == PARD2:
        return {}
    has_model_head = kind in (MTP_LAYER, DFLASH)
    return BORROWED | ({"lm_head.weight": head_weight(model)} if has_model_head else {})
