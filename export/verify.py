"""The written graph against the NumPy reference, on a few tokens.

Three questions: are the logits of a chain right; does a token fed after a prefix get the logits it
has in the chain; do the rows of a tree equal those of their chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from edgedec.kernels import PANEL, has_library, library_path
from edgedec.models.config import ModelConfig
from edgedec.models.reference import ReferenceModel, tree_mask
from edgedec.models.weights import WeightSource

N_TOKENS = 8
TREE_PREFIX = 3
"""Tokens committed before the tree pass; the rest of the chain is one branch of the tree."""

Logits = npt.NDArray[np.float32]


def verify_graph(
    graph: Path, graph_kind: Literal["fused", "portable"], source: WeightSource
) -> dict[str, Any]:
    """Returns how far the logits of ``graph`` are from the reference on the same weights.

    Returns:
        ``n_tokens``; ``max_abs_error`` and ``mean_abs_error`` of logits; ``logit_std`` of the
        reference, to judge them by; ``top1_agreement`` in [0, 1]; ``kl_nats``, the mean over
        tokens of KL(reference || graph); ``tree_max_abs_error``, rows of a tree against the same
        rows as a chain.
    """
    config = source.config
    tokens = [(7919 * i + 101) % config.vocab_size for i in range(N_TOKENS)]
    expected = ReferenceModel(source).forward(tokens).logits.astype(np.float32)
    runner = _runner(graph, graph_kind, config)
    logits = runner.run(tokens, range(-1, N_TOKENS - 1))
    return {
        **compare_logits(logits, expected),
        "tree_max_abs_error": _tree_error(runner, tokens, logits),
    }


def compare_logits(logits: Logits, expected: Logits) -> dict[str, Any]:
    """Returns error measures of ``logits`` [T, V]; see `verify_graph`."""
    error = np.abs(logits - expected)
    log_p, log_q = log_softmax(expected), log_softmax(logits)
    kl_nats = np.sum(np.exp(log_p) * (log_p - log_q), axis=-1)
    return {
        "n_tokens": len(logits),
        "max_abs_error": float(error.max()),
        "mean_abs_error": float(error.mean()),
        "logit_std": float(expected.std()),
        "top1_agreement": float(np.mean(logits.argmax(-1) == expected.argmax(-1))),
        "kl_nats": float(kl_nats.mean()),
    }


class GraphRunner(Protocol):
    """A graph and its KV cache."""

    def run(self, tokens: Sequence[int], parents: Sequence[int], n_past: int = 0) -> Logits:
        """Returns the logits [T, V] of a pass after the first ``n_past`` cached tokens."""


class FusedRunner:
    """Runs a fused graph."""

    def __init__(self, graph: Path, config: ModelConfig, capacity: int) -> None:
        self._session = open_session(graph)
        inputs = {value.name: value for value in self._session.get_inputs()}
        # Graphs on their way to the fused one may not have them yet.
        has_gates = "layer_gates" in inputs
        self._layer_gates = np.ones(2 * config.n_layers, np.int64) if has_gates else None
        n_panels = -(-capacity // PANEL)
        self._kv_cache = {
            name: _empty_kv_cache(inputs[name], n_panels) for name in ("k_cache", "v_cache")
        }

    def run(self, tokens: Sequence[int], parents: Sequence[int], n_past: int = 0) -> Logits:
        feeds = _rows(tokens, parents, n_past)
        feeds["parents"] = np.array([parents], np.int64)
        feeds["past_length"] = np.array([n_past], np.int64)
        if self._layer_gates is not None:
            feeds["layer_gates"] = self._layer_gates
        values = {k: ort.OrtValue.ortvalue_from_numpy(v) for k, v in feeds.items()}
        # These two are written in place: the arrays behind them are the KV cache.
        for name, array in self._kv_cache.items():
            values[name] = ort.OrtValue.ortvalue_from_numpy(array)
        (logits,) = self._session.run_with_ort_values(["logits"], values)
        rows: Logits = logits.numpy()[0]
        return rows


class PortableRunner:
    """Runs a portable graph."""

    def __init__(self, graph: Path, config: ModelConfig) -> None:
        self._session = open_session(graph)
        empty = np.zeros((1, config.n_kv_heads, 0, config.head_size), np.float32)
        self._kv_cache = {
            f"past_key_values.{i}.{part}": empty
            for i in range(config.n_layers)
            for part in ("key", "value")
        }

    def run(self, tokens: Sequence[int], parents: Sequence[int], n_past: int = 0) -> Logits:
        mask, _ = tree_mask(parents, n_past)
        feeds = _rows(tokens, parents, n_past)
        feeds["attention_bias"] = np.where(mask, 0, -np.inf).astype(np.float32)[None, None]
        feeds |= {name: kv[:, :, :n_past] for name, kv in self._kv_cache.items()}
        names = [name.replace("past_key_values", "present") for name in self._kv_cache]
        logits, *present = self._session.run(["logits", *names], feeds)
        self._kv_cache = dict(zip(self._kv_cache, present, strict=True))
        rows: Logits = logits[0]
        return rows


def _empty_kv_cache(value: ort.NodeArg, n_panels: int) -> npt.NDArray[Any]:
    """Returns the array that an input of keys or values asks for."""
    sizes = {"capacity": n_panels * PANEL, "capacity/16": n_panels}
    dtype = {"tensor(float16)": np.float16, "tensor(uint8)": np.uint8}[value.type]
    return np.zeros([sizes.get(n, n) for n in value.shape], dtype)


def open_session(graph: Path) -> ort.InferenceSession:
    """Returns a session that reads weights from the mapped file, not from copies of its own."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_prepacking", "1")
    if has_library():
        options.register_custom_ops_library(str(library_path()))
    return ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def _runner(graph: Path, graph_kind: str, config: ModelConfig) -> GraphRunner:
    if graph_kind == "fused":
        return FusedRunner(graph, config, 2 * N_TOKENS)
    return PortableRunner(graph, config)


def _rows(
    tokens: Sequence[int], parents: Sequence[int], n_past: int
) -> dict[str, npt.NDArray[np.generic]]:
    _, depths = tree_mask(parents, n_past)
    return {
        "input_ids": np.array([tokens], np.int64),
        "position_ids": (n_past + depths)[None],
        "logit_rows": np.arange(len(tokens), dtype=np.int64),
    }


def _tree_error(runner: GraphRunner, tokens: Sequence[int], chain_logits: Logits) -> float:
    """Feeds the end of the chain as a tree with a decoy sibling before each of its tokens."""
    nodes, parents, last = [], [], -1
    for token in tokens[TREE_PREFIX:]:
        nodes += [tokens[0], token]
        parents += [last, last]
        last = len(nodes) - 1
    logits = runner.run(nodes, parents, n_past=TREE_PREFIX)
    return float(np.abs(logits[1::2] - chain_logits[TREE_PREFIX:]).max())


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """Returns the log-probabilities of each row of logits [T, V]."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    log_probs: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return log_probs
