"""Packages run for verification, by the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.export.verifying.verify import Logits
from edgedec.models.graph import (
    ATTENTION_BIAS,
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    PAST_LENGTH,
    POSITION_IDS,
)
from edgedec.models.reference import tree_mask
from edgedec.models.static_passes import DECODE, VERIFY, StaticPass
from edgedec.targets.coreml.export_emit import MASKED
from edgedec.targets.coreml.export_interpreter import Interpreter

Array = npt.NDArray[Any]


class PackageRunner:
    """The package in ``folder``, whose state has ``n_rows``."""

    def __init__(self, folder: Path, n_rows: int) -> None:
        self._interpreter = Interpreter(folder)
        self._state = self._interpreter.new_state()
        self._n_rows = n_rows

    def compute_logits(
        self, tokens: Sequence[int], parents: Sequence[int], n_past: int = 0
    ) -> Logits:
        """Returns the logits [T, V] of a pass after the first ``n_past`` cached tokens."""
        static = DECODE if len(tokens) == 1 else VERIFY
        parts = [
            self.run_static(static, tokens, parents, n_past, start)
            for start in range(0, len(tokens), static.n_rows)
        ]
        return np.concatenate(parts)[: len(tokens)]

    def run_static(
        self,
        static: StaticPass,
        tokens: Sequence[int],
        parents: Sequence[int],
        n_past: int = 0,
        start: int = 0,
    ) -> Logits:
        """Returns the logits of the function ``static``, over the rows of a pass from ``start`` on.

        Where it has logits of fewer rows than it computes, they are those of the last ones.
        """
        mask, depths = tree_mask(parents, n_past)
        stop = min(start + static.n_rows, len(tokens))
        n = stop - start
        bias = np.full((static.n_rows, self._n_rows), MASKED, np.float16)
        bias[:n, : n_past + len(tokens)][mask[start:stop]] = 0
        inputs = {
            INPUT_IDS: _filled(tokens[start:stop], static.n_rows),
            POSITION_IDS: _filled(n_past + depths[start:stop], static.n_rows),
            PAST_LENGTH: np.array([n_past + start], np.int32),
            ATTENTION_BIAS: bias[None, None],
            LOGIT_ROWS: np.minimum(
                np.arange(static.n_logits) + (n - 1 if static.n_logits == 1 else 0), n - 1
            ).astype(np.int32),
        }
        outputs = self._interpreter.predict(static.name, inputs, self._state)
        logits: Logits = outputs[LOGITS][0].astype(np.float32)
        return logits


def _filled(values: Sequence[int] | Array, n: int) -> Array:
    """Returns ``values`` and zeros, [1, n]."""
    return np.array([[*values, *[0] * (n - len(values))]], np.int32)
