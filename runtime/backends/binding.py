"""Arrays of passes over a fused graph, bound to its ports."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime import OrtValue

from edgedec.models.graph import (
    ENTRY,
    LOGITS,
    MTP_IDS,
    MTP_LOG_PROBS,
    MTP_ROWS,
    N_TOP,
    RING_SEQUENCES,
    Capabilities,
    hidden_port,
    stats_port,
)
from edgedec.runtime.backends.pass_arrays import PassArrays, PassShape
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.rows import Float32, MtpRows, Rows

_OPTIONAL = (ENTRY, MTP_ROWS, RING_SEQUENCES)


def empty_rows(shape: PassShape, logits: Float32, hidden_size: int, can: Capabilities) -> Rows:
    """Returns rows of ``shape``, those of logits in ``logits``."""
    n_copied = shape.n_rows if shape.has_logits else 0
    hidden = {i: np.empty((shape.n_new, hidden_size), np.float32) for i, _ in shape.hidden}
    return Rows(
        logits[:n_copied],
        hidden,
        _empty_stats(shape.n_rows) if can.row_stats else None,
        mtp=_empty_mtp(shape.n_mtp, can.mtp) if shape.n_mtp else None,
    )


class Binding:
    """Arrays of one shape of pass, bound to the graph's inputs and outputs."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        shape: PassShape,
        rows: Rows,
        shared_values: dict[str, OrtValue],
        hidden_size: int,
        can: Capabilities,
    ) -> None:
        self.rows = rows
        self.arrays = PassArrays(shape, hidden_size, can.features, can.sources)
        self.io = session.io_binding()
        ports = {port.name for port in session.get_inputs()}
        for name, array in self.arrays.by_port().items():
            if name in _OPTIONAL and name not in ports:
                continue
            self.io.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(array))
        for name, value in shared_values.items():
            self.io.bind_ortvalue_input(name, value)
        for name, array in output_arrays(shape, rows).items():
            self.io.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(array))


def output_arrays(shape: PassShape, rows: Rows) -> dict[str, npt.NDArray[Any]]:
    """Returns where a graph writes ``rows``, by the names of its outputs."""
    # The graph's rows have a batch axis, its statistics do not.
    outputs: dict[str, npt.NDArray[Any]] = {
        hidden_port(port): rows.hidden[i][np.newaxis] for i, port in shape.hidden
    }
    if shape.has_logits:
        outputs[LOGITS] = rows.logits[np.newaxis]
    if rows.row_stats is not None:
        outputs |= {stats_port(name): array for name, array in vars(rows.row_stats).items()}
    if rows.mtp is not None:
        outputs |= {MTP_IDS: rows.mtp.ids, MTP_LOG_PROBS: rows.mtp.log_probs}
    return outputs


def _empty_mtp(n_rows: int, n_heads: int) -> MtpRows:
    shape = n_rows, n_heads, N_TOP
    return MtpRows(np.empty(shape, np.int64), np.empty(shape, np.float32))


def _empty_stats(n_rows: int) -> RowStats:
    return RowStats(
        argmax=np.empty(n_rows, np.int64),
        log_sum_exp=np.empty(n_rows, np.float32),
        entropy=np.empty(n_rows, np.float32),
        top_ids=np.empty((n_rows, N_TOP), np.int64),
        top_logits=np.empty((n_rows, N_TOP), np.float32),
    )
