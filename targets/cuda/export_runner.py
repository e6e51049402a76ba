"""Programs run for verification, on the CPU: the plainest way, apart from the runtime's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgedec.export.verifying.verify import Logits
from edgedec.kernels.device_program import DeviceProgram, OpenProgram, PassInputs, parts_of_pass
from edgedec.models.graph import LOGITS
from edgedec.models.reference import tree_mask
from edgedec.targets.cuda.export_kernel import Kernel
from edgedec.targets.cuda.export_twin import CpuTwin


class TwinRunner:
    """Runs ``program`` over the weights ``weights``, its kernels on this machine's CPU."""

    def __init__(
        self, program: DeviceProgram, kernels: Sequence[Kernel], weights: Path, n_logits: int
    ) -> None:
        self._opened = OpenProgram(program, CpuTwin(kernels), weights)
        self._cache = self._opened.new_cache()
        self._n_logits = n_logits

    def compute_logits(
        self, tokens: Sequence[int], parents: Sequence[int], n_past: int = 0
    ) -> Logits:
        """Returns the logits [T, V] of a pass after the first ``n_past`` cached tokens."""
        mask, depths = tree_mask(parents, n_past)
        in_tree, parts = mask[:, n_past:], []
        passes = self._opened.program.passes
        for kind, rows in parts_of_pass(passes, len(tokens), range(len(tokens))):
            inputs, part, n = (
                PassInputs(kind.n_rows, kind.n_results),
                slice(rows.start, rows.stop),
                len(rows),
            )
            slots = range(n_past + rows.start, n_past + rows.stop)
            inputs.fill(
                tokens[part], n_past + depths[part], slots, [n_past] * n, in_tree[part], n_past,
                range(n),
            )  # fmt: skip
            self._cache.run(kind, inputs)
            logits = np.empty((kind.n_results, self._n_logits), np.float32)
            parts.append(self._opened.read(kind.outputs[LOGITS], logits)[:n])
        return np.concatenate(parts)
