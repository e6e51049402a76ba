"""Graphs of 16-bit codes run for verification: on ONNX Runtime's CPU, or on Qualcomm's library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from edgedec.export.verifying.verify import Logits
from edgedec.models.graph import (
    ATTENTION_BIAS,
    INPUT_IDS,
    LOGITS,
    POSITION_IDS,
    is_past_port,
    present_port,
)
from edgedec.models.reference import tree_mask
from edgedec.models.static_passes import SCALE_KEYS, StaticPass

Array = npt.NDArray[Any]

_SEEN = 65535


def open_on_cpu(graph: Path) -> ort.InferenceSession:
    """Returns a session that computes each operator as it is written."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


class QdqRunner:
    """Runs the graphs of a model, each of which has logits of all its rows.

    sessions: by the size of their passes, rising.
    """

    def __init__(self, sessions: dict[StaticPass, ort.InferenceSession]) -> None:
        self._sessions = sessions
        first = next(iter(sessions.values()))
        self._past = {
            value.name: np.zeros(value.shape, np.uint16)
            for value in first.get_inputs()
            if is_past_port(value.name)
        }
        properties = first.get_modelmeta().custom_metadata_map
        self._scale, self._zero = (float(properties[key]) for key in SCALE_KEYS)
        self._context = next(rows.shape[3] for rows in self._past.values())

    def compute_logits(
        self, tokens: Sequence[int], parents: Sequence[int], n_past: int = 0
    ) -> Logits:
        """Returns the logits [T, V] of a pass after the first ``n_past`` cached tokens."""
        mask, depths = tree_mask(parents, n_past)
        parts, start = [], 0
        while start < len(tokens):
            static = self._fitting(len(tokens) - start)
            stop = min(start + static.n_rows, len(tokens))
            parts.append(
                self._run(static, tokens[start:stop], depths[start:stop], mask, n_past, start)
            )
            start = stop
        return np.concatenate(parts)

    def _fitting(self, n: int) -> StaticPass:
        """Returns the smallest graph for ``n`` rows, or the largest there is."""
        return next((s for s in self._sessions if s.n_rows >= n), [*self._sessions][-1])

    def _run(
        self,
        static: StaticPass,
        tokens: Sequence[int],
        depths: Array,
        mask: Array,
        n_past: int,
        start: int,
    ) -> Logits:
        n, m, before = static.n_rows, len(tokens), n_past + start
        sees = np.zeros((n, self._context + n), np.bool_)
        sees[:, self._context :] = np.eye(n, dtype=np.bool_)
        sees[:m, :before] = mask[start : start + m, :before]
        sees[:m, self._context : self._context + m] = mask[start : start + m, before : before + m]
        inputs = {
            INPUT_IDS: _filled(tokens, n),
            POSITION_IDS: _filled(n_past + depths, n),
            ATTENTION_BIAS: np.where(sees, _SEEN, 0).astype(np.uint16)[None, None],
            **self._past,
        }
        names = [LOGITS, *map(present_port, self._past)]
        outputs = dict(zip(names, self._sessions[static].run(names, inputs), strict=True))
        for name, rows in self._past.items():
            axis = 3 if name.endswith("key") else 2
            new = np.moveaxis(outputs[present_port(name)], axis, 2)
            np.moveaxis(rows, axis, 2)[:, :, before : before + m] = new[:, :, :m]
        codes = outputs[LOGITS][0, :m].astype(np.float32)
        logits: Logits = (codes - np.float32(self._zero)) * np.float32(self._scale)
        return logits


def _filled(values: Sequence[int] | Array, n: int) -> Array:
    """Returns ``values`` and zeros, [1, n]."""
    return np.array([[*values, *[0] * (n - len(values))]], np.int32)
