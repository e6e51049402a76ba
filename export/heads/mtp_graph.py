"""The target model's graph with light heads inside it: multi-token prediction.

A pass then says of a row what comes next, and what light heads take for likely after that. Nothing
is handed to a second graph and back, which for a small model takes longer than the heads compute.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.export.heads.graph import SHARED, HeadEmitter
from edgedec.export.to_onnx.graph import GraphEditor
from edgedec.export.to_onnx.linear_node import DOMAIN
from edgedec.export.to_onnx.make import make_node, make_port, tensor_of
from edgedec.export.to_onnx.messages import (
    GraphProto,
    ModelProto,
    TensorProto,
    load_model,
    save_model,
)
from edgedec.export.to_onnx.passes.fold_residual import fold_residual
from edgedec.export.to_onnx.passes.fuse_gate import fuse_gate
from edgedec.export.to_onnx.passes.merge_projections import merge_projections
from edgedec.export.to_onnx.passes.pack_matrices import pack_matrices
from edgedec.models.draft_heads import OUTPUT, HeadEntry, head_recipe
from edgedec.models.graph import (
    LOGIT_ROWS,
    MTP_IDS,
    MTP_LOG_PROBS,
    MTP_ROWS,
    N_TOP,
    ROW_STATS,
    stats_port,
)
from edgedec.models.head_ids import read_head_ids
from edgedec.models.model_entry import ModelEntry
from edgedec.models.quant import FORMATS

_NAME = "mtp.onnx"
_STATE, _IDS = "mtp.state", "mtp.head_ids"


def joined_model(target: ModelEntry, head: ModelEntry) -> ModelEntry:
    """Returns what a manifest states of ``target`` with the light heads ``head`` inside."""
    contract = target.contract
    can = dataclasses.replace(contract.can, mtp=head.config.n_layers)
    return dataclasses.replace(
        target,
        graph=str(PurePosixPath(target.graph).parent / _NAME),
        weights=tuple(dict.fromkeys((*head.weights, *target.weights))),
        contract=dataclasses.replace(
            contract,
            inputs=(*contract.inputs, MTP_ROWS),
            outputs=(*contract.outputs, MTP_IDS, MTP_LOG_PROBS),
            can=can,
        ),
    )


def write_joined_graph(
    folder: Path, target: ModelEntry, entry: HeadEntry, joined: ModelEntry
) -> None:
    """Writes the graph of ``joined``, the heads of ``entry`` in ``target``, below ``folder``.

    Its weights are those of both, where they lie in the bundle.

    Raises:
        OSError: The disk is full.
    """
    head = entry.head
    assert head.head_ids is not None
    model = load_model(folder / target.graph)
    head_model = load_model(folder / head.graph)
    ids = read_head_ids(folder / head.head_ids, head.config.vocab_size).astype(np.int64)
    add_light_heads(model, head_model, head, entry.kind, ids)
    save_model(model, folder / joined.graph)


def add_light_heads(
    model: ModelProto,
    head_model: ModelProto,
    head: ModelEntry,
    kind: str,
    ids: npt.NDArray[np.int64],
) -> None:
    """Adds to the graph of a target model what light heads say of its rows.

    Before:
        outputs: ..., stats.argmax i64 [R], ...
    After:
        state = RMSNormalization(Gather(selected_rows, mtp_rows));  token = stats.argmax[mtp_rows]
        logits = head 0 of (state, token);  RowStats(logits) -> token, ...;  head 1 of these, ...
        inputs: ..., mtp_rows i64 [F];  outputs: ..., mtp.ids i64 [F, D, 8], mtp.log_probs f32

    own: the graph of the heads by themselves, which says where their weights are. ids: tokens that
    they can name, rising.
    """
    graph = _Grafting(model, head_model, head, kind)
    graph.constant(_IDS, ids)
    graph.begin()
    for step in range(head.config.n_layers):
        graph.add_head(step)
    graph.finish(head.config.n_layers)


class _Grafting:
    """A target model's graph while light heads are added to it."""

    def __init__(
        self, model: ModelProto, head_model: ModelProto, head: ModelEntry, kind: str
    ) -> None:
        self._graph = model.graph
        (selection,) = GraphEditor(model).readers(LOGIT_ROWS)
        self._rows = selection.output[0]  # of the residual stream
        self._weights = {tensor.name: tensor for tensor in head_model.graph.initializer}
        self._known = {tensor.name for tensor in model.graph.initializer}
        self._head = head
        self._kind = kind
        self._token = "mtp.token"
        self._seen: list[str] = []
        self._places: list[str] = []
        self._log_probs: list[str] = []

    def constant(self, name: str, values: npt.NDArray[np.generic]) -> str:
        """Adds an initializer, once."""
        if name not in self._known:
            self._known.add(name)
            self._graph.initializer.append(tensor_of(values, name))
        return name

    def begin(self) -> None:
        """Adds the rows' normed hidden states and likeliest tokens."""
        config = self._head.config
        ones = self.constant("mtp.ones", np.ones(config.hidden_size, np.float32))
        self._node("Gather", [self._rows, MTP_ROWS], "mtp.stream", axis=1)
        self._node(
            "RMSNormalization", ["mtp.stream", ones], _STATE, axis=-1, epsilon=config.rms_norm_eps
        )
        self._node("Gather", [stats_port("argmax"), MTP_ROWS], "mtp.likeliest", axis=0)
        self._node("Unsqueeze", ["mtp.likeliest", self._axis(0)], self._token)

    def add_head(self, step: int) -> None:
        """Adds light head ``step``, and what it says."""
        emitter = _LightEmitter(self._head, self._kind, self._token, self._seen)
        logits = head_recipe(emitter, self._head.config, self._kind, (step,))
        small = emitter.model()
        formats = {name: FORMATS[fmt] for name, fmt in self._head.tensor_formats.items()}
        for run in (
            partial(pack_matrices, formats=formats),
            merge_projections,
            fuse_gate,
            fold_residual,
        ):
            run(small)
        stem = f"mtp.{step}"
        self._graft(small.graph, stem)
        self._seen += [f"{stem}.{name}" for name in emitter.noted]
        stats = {name: f"{stem}.{name}" for name in ROW_STATS}
        self._graph.node.append(
            make_node(
                "RowStats",
                [f"{stem}.{logits}"],
                list(stats.values()),
                name=f"{stem}.row_stats",
                domain=DOMAIN,
            )
        )
        self._node("Unsqueeze", [stats["log_sum_exp"], self._axis(1)], f"{stem}.total")
        self._node("Sub", [stats["top_logits"], f"{stem}.total"], f"{stem}.log_probs")
        for parts, name in ((self._places, "top_ids"), (self._log_probs, "log_probs")):
            self._node("Unsqueeze", [f"{stem}.{name}", self._axis(1)], f"{stem}.{name}.level")
            parts.append(f"{stem}.{name}.level")
        self._node("Gather", [_IDS, stats["argmax"]], f"{stem}.likeliest", axis=0)
        self._token = f"{stem}.token"
        self._node("Unsqueeze", [f"{stem}.likeliest", self._axis(0)], self._token)

    def finish(self, n_heads: int) -> None:
        """Adds the ports."""
        self._node("Concat", self._places, "mtp.places", axis=1)
        self._node("Gather", [_IDS, "mtp.places"], MTP_IDS, axis=0)
        self._node("Concat", self._log_probs, MTP_LOG_PROBS, axis=1)
        rows = make_port(MTP_ROWS, TensorProto.INT64, ("F",))
        self._graph.input.append(rows)
        dims = "F", n_heads, N_TOP
        for name, element in ((MTP_IDS, TensorProto.INT64), (MTP_LOG_PROBS, TensorProto.FLOAT)):
            self._graph.output.append(make_port(name, element, dims))

    def _graft(self, small: GraphProto, stem: str) -> None:
        """Adds the nodes of ``small`` under names of their own, and what they read."""
        from_model = {_STATE, self._token, *self._seen, ""}
        weights = {t.name: self._weight(t) for t in small.initializer}
        for node in small.node:
            for names in (node.input, node.output):
                for i, name in enumerate(names):
                    if name not in from_model:
                        names[i] = weights.get(name, f"{stem}.{name}")
            node.name = f"{stem}.{node.name}"
            self._graph.node.append(node)

    def _weight(self, tensor: TensorProto) -> str:
        """Returns what a weight is called here; adds it where it is not there yet."""
        name = tensor.name if tensor.name == SHARED else f"mtp.{tensor.name}"
        if name not in self._known:
            self._known.add(name)
            copied = TensorProto()
            copied.CopyFrom(self._weights.get(tensor.name, tensor))
            copied.name = name
            self._graph.initializer.append(copied)
        return name

    def _axis(self, axis: int) -> str:
        return self.constant(f"mtp.axis.{axis}", np.array([axis], np.int64))

    def _node(self, op_type: str, inputs: list[str], name: str, **attributes: Any) -> None:
        made = make_node(op_type, inputs, [name], name=name, **attributes)
        self._graph.node.append(made)


class _LightEmitter(HeadEmitter):
    """A `HeadEmitter` of one light head, whose rows are those of the target model's pass.

    seen: normed embeddings of the tokens before ``token``. noted: names of what `hidden` was given.
    """

    def __init__(self, head: ModelEntry, kind: str, token: str, seen: list[str]) -> None:
        super().__init__(head.config, head.contract.can.features, kind)
        self._token = token
        self._seen = tuple(seen)
        self.noted: list[str] = []

    def embed(self, weight: str) -> str:
        """Gathers columns, as `PortableEmitter` does, of the token before."""
        columns = self._node("Gather", [self._weight(weight), self._token], "columns", axis=1)
        return self._node("Transpose", [columns], "embed", perm=[1, 2, 0])

    def features(self) -> str:
        """Returns the state, the first of the features; the others stand in ``seen``."""
        return _STATE

    def first(self, x: str, n: int) -> str:
        """Returns ``x``: neither state nor what a head sees is longer than what it reads."""
        return x

    def beside_features(self, x: str) -> str:
        """Adds a Concat of the state and the tokens before."""
        return self._node("Concat", [x, _STATE, *self._seen], "beside_features", axis=-1)

    def hidden(self, x: str, layer: int) -> None:
        """Notes ``x``, which heads behind this one see."""
        assert layer == OUTPUT
        self.noted.append(x)

    def select_rows(self, x: str) -> str:
        """Returns all rows."""
        return x
