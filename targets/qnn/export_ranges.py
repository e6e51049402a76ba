"""Ranges of activations, measured on texts while the graph of floats computes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from edgedec.export.to_onnx.make import make_node, make_port
from edgedec.export.to_onnx.messages import ModelProto, TensorProto, save_model
from edgedec.models.graph import (
    ATTENTION_BIAS,
    INPUT_IDS,
    POSITION_IDS,
    is_past_port,
    present_port,
)
from edgedec.models.static_passes import StaticPass
from edgedec.targets.qnn.export_emit import STREAM, Range, Ranges

Array = npt.NDArray[Any]

CHUNK = StaticPass("measured", 64, 64)
"""What is computed at once."""

CONTEXT = 256
"""Tokens of a text, at most."""

MARGIN = 1.25
"""How much larger than measured numbers may become."""

_MASKED = np.float32(-1.0e4)
_ENDS = ("ReduceMin", "ReduceMax")


def measure_ranges(graph: ModelProto, path: Path, texts: Sequence[Sequence[int]]) -> Ranges:
    """Returns the least and largest number of every value of ``graph`` over ``texts``.

    graph: of `CHUNK` after `CONTEXT` rows, without ranges. path: where it is written.
    """
    made = [
        name for node in graph.graph.node if node.op_type != "DequantizeLinear"
        for name in node.output
    ]  # fmt: skip
    kept = {value.name for value in graph.graph.output}
    measured = [name for name in made if name not in kept]
    _add_ends(graph, measured)
    save_model(graph, path)
    session = _open(path)
    ranges: dict[str, Range] = dict.fromkeys(measured, (0.0, 0.0))
    for text in texts:
        for outputs in _chunks(session, text[:CONTEXT]):
            for name in measured:
                low, high = (float(outputs[f"{name}/{end}"]) for end in _ENDS)
                ranges[name] = min(low, ranges[name][0]), max(high, ranges[name][1])
    return {name: _widened(name, of) for name, of in ranges.items()}


def _widened(name: str, of: Range) -> Range:
    """Returns the range with room for what the texts did not show.

    The residual stream has none: one number of the first token, a thousand times as large as the
    others and much the same in every text, makes its codes coarse enough.
    """
    return of if name.endswith(STREAM) else (MARGIN * of[0], MARGIN * of[1])


def _add_ends(graph: ModelProto, names: Sequence[str]) -> None:
    """Makes the least and the largest number of each value outputs."""
    for name in names:
        for end in _ENDS:
            output = f"{name}/{end}"
            graph.graph.node.append(make_node(end, [name], [output], keepdims=0))
            value = make_port(output, TensorProto.FLOAT, [])
            graph.graph.output.append(value)


def _open(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _chunks(session: ort.InferenceSession, text: Sequence[int]) -> Iterator[dict[str, Array]]:
    """Yields the outputs of each chunk of ``text``; what is no whole chunk is left out."""
    names = [value.name for value in session.get_outputs()]
    past = {
        value.name: np.zeros(value.shape, np.float32)
        for value in session.get_inputs()
        if is_past_port(value.name)
    }
    n = CHUNK.n_rows
    for start in range(0, len(text) - n + 1, n):
        bias = np.full((n, CONTEXT + n), _MASKED)
        bias[:, :start] = 0
        bias[:, CONTEXT:][np.tri(n, dtype=np.bool_)] = 0
        inputs = {
            INPUT_IDS: np.array([text[start : start + n]], np.int32),
            POSITION_IDS: np.arange(start, start + n, dtype=np.int32)[np.newaxis],
            ATTENTION_BIAS: bias[np.newaxis, np.newaxis],
            **past,
        }
        outputs = dict(zip(names, session.run(None, inputs), strict=True))
        for name, rows in past.items():
            axis = 3 if name.endswith("key") else 2
            place = np.moveaxis(rows, axis, 2)
            place[:, :, start : start + n] = np.moveaxis(outputs[present_port(name)], axis, 2)
        yield outputs
