"""OpenVINO graphs run for verification: the plainest way, apart from the runtime's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from edgedec.export.verifying.verify import Logits
from edgedec.models.config import ModelConfig
from edgedec.models.graph import (
    ATTENTION_BIAS,
    BEAM_IDX,
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    WEIGHTS_BESIDE,
)
from edgedec.models.position_tables import PositionTables
from edgedec.models.reference import tree_mask
from edgedec.targets.openvino.export_emit import MASKED


class OpenVinoRunner:
    """Runs a graph on the CPU. Rows that later passes are not to see stay in its states, hidden."""

    def __init__(self, graph: Path, config: ModelConfig, kv_format: str) -> None:
        core = ov.Core()
        model = core.read_model(graph, graph.with_name(WEIGHTS_BESIDE))
        properties = {
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": kv_format.replace("float", "f"),
        }
        self._request = core.compile_model(model, "CPU", properties).create_infer_request()
        self._tables = PositionTables(config, [port.any_name for port in model.inputs])
        self._places: list[int] = []
        self._n_rows = 0

    def compute_logits(
        self, tokens: Sequence[int], parents: Sequence[int], n_past: int = 0
    ) -> Logits:
        """Returns the logits [T, V] of a pass after the first ``n_past`` cached tokens."""
        n = len(tokens)
        mask, depths = tree_mask(parents, n_past)
        bias = np.full((n, self._n_rows + n), MASKED, np.float32)
        self._places = [*self._places[:n_past], *range(self._n_rows, self._n_rows + n)]
        bias[:, self._places] = np.where(mask, 0, MASKED)
        self._n_rows += n
        feeds: dict[str, Any] = {
            INPUT_IDS: np.array([tokens], np.int64),
            LOGIT_ROWS: np.arange(n, dtype=np.int64),
            ATTENTION_BIAS: bias[None, None],
            BEAM_IDX: np.zeros(1, np.int32),
        }
        feeds |= self._tables.rows_at(n_past + depths)
        logits: Logits = self._request.infer(feeds)[LOGITS][0].copy()
        return logits
