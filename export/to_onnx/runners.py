"""ONNX graphs run for verification: the plainest way, apart from the runtime's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from edgedec.export.kv_panels import KV_FORMAT
from edgedec.export.to_onnx.graph import attributes
from edgedec.export.to_onnx.messages import load_model
from edgedec.export.verifying.verify import Logits
from edgedec.kernels.cpu import PANEL
from edgedec.kernels.library import has_library, library_path
from edgedec.models.config import ModelConfig
from edgedec.models.graph import (
    ATTENTION_BIAS,
    CONV_TAPS,
    ENTRY,
    INPUT_IDS,
    K_CACHE,
    K_RING,
    KV_PARTS,
    LAYER_GATES,
    LOGIT_ROWS,
    LOGITS,
    PARENTS,
    POSITION_IDS,
    RECURRENT_PAST,
    RECURRENT_ROWS,
    RING_SEQUENCES,
    SEQUENCES,
    SOURCE_BIAS,
    SOURCES,
    STATE_PLACE,
    STATE_WALK,
    STATES,
    V_CACHE,
    V_RING,
    new_rows_port,
    past_port,
    present_port,
    rows_port,
    state_port,
)
from edgedec.models.kv_formats import kv_formats_of, kv_panels_of
from edgedec.models.position_tables import PositionTables
from edgedec.models.recurrence import conv_taps, state_walk
from edgedec.models.reference import tree_mask

_DTYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
}


class FusedRunner:
    """Runs a fused graph. layer_gates: which sub-layers run, at first all; None without gates."""

    def __init__(self, graph: Path, config: ModelConfig, capacity: int) -> None:
        self._session = open_session(graph)
        self._graph = graph
        inputs = {value.name: value for value in self._session.get_inputs()}
        # Graphs on their way to the fused one may not have them yet.
        has_gates = LAYER_GATES in inputs
        self.layer_gates = np.ones(2 * config.n_layers, np.int64) if has_gates else None
        self._entry = {ENTRY: np.zeros((1, 0, config.hidden_size), np.float32)}
        if ENTRY not in inputs:
            self._entry = {}
        self._n_panels = -(-capacity // PANEL)
        self._recurrent = {}
        if RECURRENT_ROWS in inputs:
            n_layers, _, row_size = inputs[RECURRENT_ROWS].shape
            n_rows = self._n_panels * PANEL  # that never wrap
            self._recurrent[RECURRENT_ROWS] = np.zeros((n_layers, n_rows, row_size), np.float32)
        if STATES in inputs:
            self._recurrent[STATES] = np.zeros(inputs[STATES].shape, np.float32)
        self._sequences = [name for name in (SEQUENCES, RING_SEQUENCES) if name in inputs]
        self._tables = PositionTables(config, inputs)
        self._config, self._n_source, self._has_sources = config, 0, SOURCES in inputs
        self._kv_cache = {
            name: _empty_kv_cache(inputs[name], self._n_panels)
            for name in (K_CACHE, V_CACHE, K_RING, V_RING)
            if name in inputs
        }

    def read_source(self, encoder: Path, ids: Sequence[int]) -> None:
        """Has an encoder read a source, whose rows all later passes look at."""
        layers = self._config.kv_layers
        ports = [past_port(i, part) for part in KV_PARTS for i in layers]
        rows = list(encoded(encoder, self._config, ids, ports).values())
        keys, values = (np.concatenate(rows[n : n + len(layers)]) for n in (0, len(layers)))
        caches = self._kv_cache[K_CACHE], self._kv_cache[V_CACHE]
        panels = kv_panels_of(_kv_format_of(self._graph))
        panel, lane = np.divmod(np.arange(len(ids)), PANEL)
        for name, view in panels.views(*caches, self._config.head_size).items():
            view[:, :, panel, lane] = panels.rows_of(keys, values)[name]
        self._n_source = len(ids)

    def compute_logits(
        self, tokens: Sequence[int], parents: Sequence[int], n_past: int = 0
    ) -> Logits:
        """Returns the logits [T, V] of a pass after the first ``n_past`` cached tokens."""
        n_past += self._n_source
        feeds = _rows(tokens, parents, n_past) | self._entry
        if self._has_sources:
            feeds[SOURCES] = np.array([self._n_source], np.int64)
        feeds[PARENTS] = np.array([parents], np.int64)
        n = len(tokens)
        sequences = np.array([[n_past, n, len(parents), 0, self._n_panels]], np.int64)
        feeds |= dict.fromkeys(self._sequences, sequences)
        if self.layer_gates is not None:
            feeds[LAYER_GATES] = self.layer_gates
        if self._recurrent:
            feeds[RECURRENT_PAST] = np.array([n_past], np.int64)
        if STATES in self._recurrent:  # replayed from the beginning in every pass
            feeds[STATE_PLACE] = np.array([0, -1, -1, -1], np.int64)
        feeds |= self._tables.up_to(n_past + len(parents))
        values = {k: ort.OrtValue.ortvalue_from_numpy(v) for k, v in feeds.items()}
        # These are written in place: the arrays behind them are the KV cache.
        for name, array in (self._kv_cache | self._recurrent).items():
            values[name] = ort.OrtValue.ortvalue_from_numpy(array)
        (logits,) = self._session.run_with_ort_values([LOGITS], values)
        rows: Logits = logits.numpy()[0]
        return rows

    def key_rows(
        self, caches: tuple[str, str], layer: int, n_tokens: int
    ) -> npt.NDArray[np.float32]:
        """Returns the rotated keys of the first tokens. Shapes: [n_kv_heads, n_tokens, head_size].

        caches, layer: where they are, of a float16 KV cache; see `kv_place`.
        """
        panels = self._kv_cache[caches[0]][layer]
        n_heads, n_panels, head_size, _ = panels.shape
        rows = panels.swapaxes(-1, -2).reshape(n_heads, n_panels * PANEL, head_size)
        keys: npt.NDArray[np.float32] = rows[:, :n_tokens].astype(np.float32)
        return keys


class PortableRunner:
    """Runs a graph with KV rows. is_prepacked: see `open_session`."""

    def __init__(self, graph: Path, config: ModelConfig, is_prepacked: bool = False) -> None:
        self._session = open_session(graph, is_prepacked)
        self._config, self._is_bidirectional = config, config.is_bidirectional
        types = {value.name: _DTYPES[value.type] for value in self._session.get_inputs()}
        names = {past_port(i, part): i for i in config.kv_layers for part in KV_PARTS}
        self._tables = PositionTables(
            config, types, next((types[name] for name in names), np.float32)
        )
        self._kv_cache = {
            name: np.zeros((1, config.n_kv_heads, 0, config.head_size_of(layer)), types[name])
            for name, layer in names.items()
        }
        self._n_source = 0
        self._has_source = config.encoder is not None
        self._recurrence = config.recurrence
        before = np.zeros((1, self._recurrence.look_back, self._recurrence.row_size), np.float32)
        self._rows = dict.fromkeys(config.recurrent_layers, before)  # of all tokens, after zeros
        self._state = np.zeros(self._recurrence.state_sizes, np.float32)

    def read_source(self, encoder: Path, ids: Sequence[int]) -> None:
        """Has an encoder read a source, whose rows all later passes look at."""
        rows = encoded(encoder, self._config, ids, list(self._kv_cache))
        self._kv_cache, self._n_source = rows, len(ids)

    def compute_logits(
        self, tokens: Sequence[int], parents: Sequence[int], n_past: int = 0
    ) -> Logits:
        """Returns the logits [T, V] of a pass after the first ``n_past`` cached tokens."""
        n_source = self._n_source
        n_past += n_source
        mask, _ = tree_mask(parents, n_past)
        mask |= self._is_bidirectional
        mask[:, :n_source] = False
        feeds = _rows(tokens, parents, n_past)
        feeds[ATTENTION_BIAS] = np.where(mask, 0, -np.inf).astype(np.float32)[None, None]
        if self._has_source:
            hidden = np.arange(n_past + len(parents)) >= n_source
            rows = np.broadcast_to(np.where(hidden, -np.inf, 0), mask.shape)
            feeds[SOURCE_BIAS] = rows.astype(np.float32)[None, None]
        feeds |= {name: kv[:, :, :n_past] for name, kv in self._kv_cache.items()}
        feeds |= self._tables.up_to(n_past + len(parents))
        names = [present_port(name) for name in self._kv_cache]
        if self._rows:
            n_rows = self._recurrence.look_back + n_past
            feeds |= {rows_port(i): rows[:, :n_rows] for i, rows in self._rows.items()}
            feeds |= self._steps(parents, n_past)
            names += map(new_rows_port, self._rows)
        logits, *present = self._session.run([LOGITS, *names], feeds)
        n_kv = len(self._kv_cache)
        self._kv_cache = dict(zip(self._kv_cache, present[:n_kv], strict=True))
        self._rows = dict(zip(self._rows, present[n_kv:], strict=True))
        logits_: Logits = logits[0]
        return logits_

    def _steps(self, parents: Sequence[int], n_past: int) -> dict[str, npt.NDArray[Any]]:
        """Returns what layers read to find rows; states are replayed from the beginning."""
        recurrent = self._recurrence
        if not recurrent.has_states:
            return {
                CONV_TAPS: conv_taps(parents, recurrent.look_back + n_past, recurrent.conv_size)
            }
        walk = state_walk(parents, 0, n_past, False, recurrent.conv_size)
        states = {state_port(layer): self._state for layer in self._rows}
        return {**dict(zip(STATE_WALK, walk, strict=True)), **states}


def encoded(
    encoder: Path, config: ModelConfig, ids: Sequence[int], past_ports: Sequence[str]
) -> dict[str, npt.NDArray[Any]]:
    """Returns the rows that an encoder's graph makes of a source, by the names of ``past_ports``.

    config: of the decoder.

    Shapes: each [1, n_kv_heads, len(ids), head_size].
    """
    session, names = open_session(encoder), [present_port(name) for name in past_ports]
    tables = PositionTables(config, [value.name for value in session.get_inputs()]).up_to(len(ids))
    rows = session.run(names, {INPUT_IDS: np.array([ids], np.int64), **tables})
    return dict(zip(past_ports, rows, strict=True))


def _kv_format_of(graph: Path) -> str:
    """Returns the format of a fused graph's KV cache."""
    nodes = load_model(graph).graph.node
    number = next(attributes(node)[KV_FORMAT] for node in nodes if node.op_type == "Attention")
    return next(name for name in kv_formats_of("panels") if kv_panels_of(name).index == number)


def _empty_kv_cache(value: ort.NodeArg, n_panels: int) -> npt.NDArray[Any]:
    """Returns the array that an input of keys or values asks for."""
    sizes = dict.fromkeys(("capacity", "ring"), n_panels * PANEL)  # rings that never wrap
    sizes |= {f"{name}/16": n_panels for name in sizes}
    return np.zeros([sizes.get(n, n) for n in value.shape], _DTYPES[value.type])


def open_session(graph: Path, is_prepacked: bool = False) -> ort.InferenceSession:
    """Returns a session that reads weights from the mapped file, not from copies of its own.

    is_prepacked: it makes copies, arranged as its fastest kernels read them; those compute
        otherwise than the ones that read the file.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if not is_prepacked:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if has_library():
        options.register_custom_ops_library(str(library_path()))
    return ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def _rows(
    tokens: Sequence[int], parents: Sequence[int], n_past: int
) -> dict[str, npt.NDArray[np.generic]]:
    _, depths = tree_mask(parents, n_past)
    return {
        INPUT_IDS: np.array([tokens], np.int64),
        POSITION_IDS: (n_past + depths)[None],
        LOGIT_ROWS: np.arange(len(tokens), dtype=np.int64),
    }
