"""Compiled programs run for verification: the plainest way, apart from the runtime's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.export.verifying.verify import Logits
from edgedec.export.weights_file import WEIGHTS_FILE
from edgedec.kernels.cpu import PANEL
from edgedec.kernels.tvm_program import RUNTIME_NAMES, Program, as_array, as_tensor
from edgedec.models.config import ModelConfig
from edgedec.models.graph import (
    ENTRY,
    INPUT_IDS,
    K_CACHE,
    K_RING,
    LAYER_GATES,
    LOGIT_ROWS,
    LOGITS,
    PARENTS,
    POSITION_IDS,
    RING_SEQUENCES,
    SEQUENCES,
    V_CACHE,
    V_RING,
    GraphContract,
)
from edgedec.models.kv_formats import kv_panels_of
from edgedec.models.position_tables import PositionTables
from edgedec.models.reference import tree_mask


class ProgramRunner:
    """Runs the program ``library``, which lies beside its weights."""

    def __init__(
        self, library: Path, config: ModelConfig, contract: GraphContract, capacity: int
    ) -> None:
        runtime = [library.with_name(name) for name in RUNTIME_NAMES]
        self._program = Program(library, library.with_name(WEIGHTS_FILE), runtime)
        self._machine = self._program.machine(1)
        self._contract = contract
        self._tables = PositionTables(config, contract.inputs)
        self._n_panels = -(-capacity // PANEL)
        self._fixed: dict[str, npt.NDArray[Any]] = {
            ENTRY: np.zeros((1, 0, config.hidden_size), np.float32),
            LAYER_GATES: np.ones(2 * config.n_layers, np.int64),
            **_empty_kv_caches(config, contract, self._n_panels),
        }

    def compute_logits(
        self, tokens: Sequence[int], parents: Sequence[int], n_past: int = 0
    ) -> Logits:
        """Returns the logits [T, V] of a pass after the first ``n_past`` cached tokens."""
        _, depths = tree_mask(parents, n_past)
        numbers = n_past, len(tokens), len(parents), 0, self._n_panels
        sequences = np.array([numbers], np.int64)
        inputs: dict[str, npt.NDArray[Any]] = self._fixed | {
            INPUT_IDS: np.array([tokens], np.int64),
            POSITION_IDS: np.array([n_past + depths], np.int64),
            PARENTS: np.array([parents], np.int64),
            SEQUENCES: sequences,
            RING_SEQUENCES: sequences,
            LOGIT_ROWS: np.arange(len(tokens), dtype=np.int64),
            **self._tables.up_to(n_past + len(parents)),
        }
        outputs = self._machine.run([as_tensor(inputs[name]) for name in self._contract.inputs])
        logits: Logits = as_array(outputs[self._contract.outputs.index(LOGITS)])[0]
        return logits


def _empty_kv_caches(
    config: ModelConfig, contract: GraphContract, n_panels: int
) -> dict[str, npt.NDArray[Any]]:
    """Returns KV caches of ``n_panels`` panels, those of windows as long; see `KVLayout`."""
    n_rings, d = len(contract.kv.ring_layers), config.head_size
    panels = kv_panels_of(contract.kv.format)
    caches: dict[str, npt.NDArray[Any]] = {}
    for k, v, n_layers in (
        (K_CACHE, V_CACHE, config.n_layers - n_rings),
        (K_RING, V_RING, n_rings),
    ):
        heads = (n_layers, config.n_kv_heads)
        for name, shape in zip((k, v), panels.shapes(n_panels, n_panels * PANEL, d), strict=True):
            caches[name] = np.zeros((*heads, *shape), panels.element)
    return caches
