"""Graphs compiled for a Qualcomm NPU, one for each size of pass; keys and values are 16-bit codes.

Graphs take codes and give codes. Of the attention bias only the least and the largest code are
used, and zeros are what nobody sees, so that logits alone have a scale to be known.

This has run over Qualcomm's library for x86, which evaluates such graphs, and never on an NPU.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from edgedec.kernels.qnn_provider import new_session, says
from edgedec.models.config import ModelConfig
from edgedec.models.errors import BundleError, ConfigError, SessionError
from edgedec.models.graph import (
    ATTENTION_BIAS,
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    POSITION_IDS,
    GraphContract,
    past_port,
    present_port,
)
from edgedec.models.static_passes import BUCKETS, CONTEXT_BINARIES, SCALE_KEYS, StaticPass
from edgedec.runtime.backends.graph_checks import check_names, check_shape, one_line
from edgedec.runtime.backends.kv_cache import lazy_zeros
from edgedec.runtime.backends.model_facts import GraphToRun, ModelFacts
from edgedec.runtime.backends.ort import PassRunner
from edgedec.runtime.backends.static_cache import BucketPart, PartInputs, StaticKVCache
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.rows import Rows
from edgedec.targets.qnn.socs import Soc, find_soc

Array = npt.NDArray[Any]

_SEEN = 65535
"""Code of the attention bias where a row is attended to."""


class QnnModel(ModelFacts):
    """A `Model` over a compiled graph for each size of pass."""

    def __init__(self, graph: GraphToRun) -> None:
        super().__init__(graph)
        self._folder = folder = graph.path.parent
        self._soc = _checked_soc(folder, self.contract)
        self._sessions: dict[StaticPass, onnxruntime.InferenceSession] | None = {}
        first = self._session(BUCKETS[0])
        self._scale, self._zero = _scale_of(folder, first)
        self.n_rows = _checked_ports(folder, first, self.contract, self.config)

    @property
    def is_closed(self) -> bool:
        return self._sessions is None

    def new_state(self, context: int) -> QnnKVCache:
        """Returns an empty KV cache, of as many rows as the graphs take."""
        return QnnKVCache(self)

    def run(self, bucket: StaticPass, inputs: dict[str, Array]) -> dict[str, Array]:
        """Returns what the graph for ``bucket`` gives.

        Raises:
            SessionError: It fails, or the model is closed.
        """
        session = self._session(bucket)
        names = [LOGITS, *map(present_port, self.contract.past_ports)]
        with self.affinity.held():
            values = PassRunner().run(partial(session.run, names, inputs))
        return dict(zip(names, values, strict=True))

    def logits(self, codes: Array) -> npt.NDArray[np.float32]:
        """Returns the logits that ``codes`` stand for."""
        logits: npt.NDArray[np.float32] = (codes.astype(np.float32) - self._zero) * self._scale
        return logits

    def close(self) -> None:
        """Releases the graphs."""
        self._sessions = None

    def _session(self, bucket: StaticPass) -> onnxruntime.InferenceSession:
        """Returns the graph for ``bucket``, opened when a pass first needs it."""
        if self._sessions is None:
            raise SessionError("the model is closed: load the bundle again")
        if bucket not in self._sessions:
            graph = self._folder / f"{bucket.name}.onnx"
            try:
                self._sessions[bucket] = new_session(
                    graph, self._soc.number, self._soc.arch, {"ep.share_ep_contexts": "1"}
                )
            except Exception as error:  # its exceptions share no base of their own
                raise BundleError(
                    f"Qualcomm's provider refuses {graph} ({one_line(error)}): it is compiled for "
                    f"{self._soc.name}; see what is here with `edgedec doctor`"
                ) from None
        return self._sessions[bucket]


def open_model(graph: GraphToRun) -> QnnModel:
    """Returns the model of the graphs beside ``graph``.

    Raises:
        BundleError: They are not what is stated, or for another device.
    """
    return QnnModel(graph)


def _checked_soc(folder: Path, contract: GraphContract) -> Soc:
    """Returns what the bundle is for; a BundleError where its binaries are for something else."""
    try:
        soc = find_soc(contract.providers[0] if contract.providers else "")
    except ConfigError as error:
        raise BundleError(f"the graphs in {folder} are for an unknown device: {error}") from None
    for binary in (folder / name for name in CONTEXT_BINARIES):
        if binary.exists() and not says(binary, soc.mark):
            raise BundleError(
                f"{binary} is not compiled for {soc.name}, which the manifest states: export the "
                "model again"
            )
    return soc


def _scale_of(folder: Path, session: onnxruntime.InferenceSession) -> tuple[np.float32, np.float32]:
    """Returns scale and zero point of logits, which the graph states."""
    properties = session.get_modelmeta().custom_metadata_map
    try:
        scale, zero = (float(properties[key]) for key in SCALE_KEYS)
    except (KeyError, ValueError):
        scale = zero = math.nan
    if not (0 < scale < math.inf and 0 <= zero <= _SEEN):
        raise BundleError(
            f"the graphs in {folder} state no scale of logits: export the model again"
        )
    return np.float32(scale), np.float32(zero)


def _checked_ports(
    folder: Path,
    session: onnxruntime.InferenceSession,
    contract: GraphContract,
    config: ModelConfig,
) -> int:
    """Returns the rows of keys and values that go in; a BundleError where ports differ."""
    graph = folder / f"{BUCKETS[0].name}.onnx"
    inputs = {value.name: value.shape for value in session.get_inputs()}
    outputs = {value.name: value.shape for value in session.get_outputs()}
    check_names(graph, "inputs", inputs, contract.inputs)
    check_names(graph, "outputs", outputs, contract.outputs)
    check_shape(graph, LOGITS, outputs[LOGITS], (None, None, config.n_logits))
    n_rows = int(inputs[past_port(0, "key")][3])
    for layer in range(config.n_layers):
        sizes = config.n_kv_heads, config.head_size
        key, value = past_port(layer, "key"), past_port(layer, "value")
        check_shape(graph, key, inputs.get(key, ()), (1, *sizes, n_rows))
        check_shape(graph, value, inputs.get(value, ()), (1, sizes[0], n_rows, sizes[1]))
    return n_rows


class QnnKVCache(StaticKVCache):
    """A `SequenceState` of 16-bit codes.

    Shapes: keys [1, n_kv_heads, head_size, rows], values [1, n_kv_heads, rows, head_size].
    """

    _model: QnnModel

    def __init__(self, model: QnnModel) -> None:
        self._model = model
        c, n = model.config, model.n_rows
        self._arrays = {}
        for layer in range(c.n_layers):
            keys = lazy_zeros((1, c.n_kv_heads, c.head_size, n), np.uint16)
            self._arrays[past_port(layer, "key")] = keys
            values = lazy_zeros((1, c.n_kv_heads, n, c.head_size), np.uint16)
            self._arrays[past_port(layer, "value")] = values
        super().__init__(n, _by_token(self._arrays), np.dtype(np.uint16))

    def _compute(self, pass_: Pass, n_past: int, part: BucketPart) -> Rows:
        part_inputs = PartInputs.of(pass_.tree, n_past, part)
        sees = self._visible(pass_.tree, n_past, part)
        inputs = {
            INPUT_IDS: part_inputs.ids.astype(np.int32),
            POSITION_IDS: part_inputs.positions.astype(np.int32),
            ATTENTION_BIAS: np.where(sees, np.uint16(_SEEN), np.uint16(0))[np.newaxis, np.newaxis],
            **self._arrays,
        }
        if part.bucket.n_logits < part.bucket.n_rows:
            inputs[LOGIT_ROWS] = part_inputs.logit_rows.astype(np.int32)
            chosen = np.arange(len(part.logit_rows))
        else:
            chosen = np.array(part.logit_rows, int) - part.tokens.start
        outputs = self._model.run(part.bucket, inputs)
        new = {past: outputs[present_port(past)] for past in self._arrays}
        self._write(n_past + part.tokens.start, _by_token(new), len(part.tokens))
        return Rows(self._model.logits(outputs[LOGITS][0][chosen]))

    def close(self) -> None:
        """Releases the arrays."""
        self._arrays.clear()
        super().close()


def _by_token(arrays: dict[str, Array]) -> dict[str, Array]:
    """Returns views whose third axis is that of tokens."""
    return {
        name: array.swapaxes(2, 3) if name.endswith("key") else array
        for name, array in arrays.items()
    }
