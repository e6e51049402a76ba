"""Packages of Core ML, on the processors that macOS chooses: CPU, GPU, Neural Engine.

Keys and values are state, of which a pass writes the rows behind all others. Where a tree's path is
kept, the rows of the tokens beside it stay where they are, hidden from later passes by the
attention bias, until there are many of them.

This has run over an evaluation of packages in NumPy
(`edgedec.targets.coreml.export_interpreter`), which offers what coremltools' models do, and never
on macOS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import coremltools
import numpy as np
import numpy.typing as npt

from edgedec.models.errors import BundleError, SessionError
from edgedec.models.graph import (
    ATTENTION_BIAS,
    INPUT_IDS,
    LOGIT_ROWS,
    LOGITS,
    PAST_LENGTH,
    POSITION_IDS,
    hidden_port,
)
from edgedec.models.static_passes import (
    SPARE_ROWS,
    STATIC_PASSES,
    PassPart,
    coreml_port,
    parts_of_pass,
)
from edgedec.runtime.backends.model_facts import GraphToRun, ModelFacts
from edgedec.runtime.backends.whole_cache import WholeCache
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.state import KVRows
from edgedec.runtime.sequences.token_tree import TokenTree

Array = npt.NDArray[Any]

_MASKED = np.float16(-3.0e4)  # no number that is added to it leaves float16
_STATES = ("keys", "values")
_MAX_HIDDEN_ROWS = SPARE_ROWS // 2
"""Rows of tokens that were not kept, before those that were are moved together."""


class State(Protocol):
    """Keys and values of one text, as `coremltools.models.MLState`."""

    def read_state(self, name: str) -> Array:
        """Returns the array ``name`` [n_layers, n_kv_heads, rows, head_size]."""

    def write_state(self, name: str, value: Array) -> None:
        """Replaces it."""


class StaticFunction(Protocol):
    """One function of a package, as `coremltools.models.MLModel`."""

    def predict(self, data: dict[str, Array], state: State) -> Mapping[str, Array]:
        """Returns the outputs."""

    def make_state(self) -> State:
        """Returns a state of zeros, which all functions of the package can go on with."""


class CoreMLModel(ModelFacts):
    """A `Model` over the functions of a package."""

    def __init__(self, graph: GraphToRun) -> None:
        super().__init__(graph)
        package = graph.path.parents[2]
        self._functions: Mapping[str, StaticFunction] | None = open_functions(package)

    @property
    def is_closed(self) -> bool:
        return self._functions is None

    @property
    def functions(self) -> Mapping[str, StaticFunction]:
        """By the names of `STATIC_PASSES`; a SessionError where they were released."""
        if self._functions is None:
            raise SessionError("the model is closed: load the bundle again")
        return self._functions

    def new_state(self, context: int) -> CoreMLKVCache:
        """Returns an empty KV cache, of as many rows as the package states."""
        return CoreMLKVCache(self)

    def close(self) -> None:
        """Releases the functions."""
        self._functions = None


def open_model(graph: GraphToRun) -> CoreMLModel:
    """Returns the model of the package that ``graph`` is the specification of."""
    return CoreMLModel(graph)


def open_functions(package: Path) -> Mapping[str, StaticFunction]:
    """Returns the functions of a package by name; Core ML compiles it first.

    Raises:
        BundleError: Core ML refuses it.
    """
    try:
        return {
            static.name: coremltools.models.MLModel(str(package), function_name=static.name)
            for static in STATIC_PASSES
        }
    except (RuntimeError, ValueError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise BundleError(
            f"Core ML cannot open {package} ({reason}): it needs macOS 15; check the bundle with "
            "`edgedec inspect --verify`"
        ) from None


class CoreMLKVCache(WholeCache):
    """A `SequenceState` of a package's state; committed token i has row ``self._places[i]``."""

    _model: CoreMLModel

    def __init__(self, model: CoreMLModel) -> None:
        self._model = model
        self._state = next(iter(model.functions.values())).make_state()
        self._n_rows: int = self._state.read_state(_STATES[0]).shape[2]
        self._places = np.zeros(0, np.int64)
        self._first = 0  # row of the first token of the pending pass

    def run(self, pass_: Pass) -> Rows:
        """Returns the asked rows, in arrays of their own."""
        n_past = pass_.n_past
        if not pass_.n_known:
            self._drop_behind(n_past)
            self._first = self._end
        logit_rows = [row - pass_.n_known for row in pass_.logit_rows]
        n_new = len(pass_.tree) - pass_.n_known
        logits: dict[int, Array] = {}
        hidden: dict[int, list[Array]] = {layer: [] for layer in pass_.hidden_layers}
        for part in parts_of_pass(n_new, logit_rows):
            rows = [row for row in logit_rows if part.start <= row < part.stop]
            outputs = self._run(part, self._inputs(pass_, n_past, part, rows))
            logits |= zip(rows, outputs[LOGITS][0].astype(np.float32), strict=False)
            for layer, states in hidden.items():
                computed = outputs[coreml_port(hidden_port(layer))][0]
                states.append(computed[: part.stop - part.start].astype(np.float32))
        empty = np.zeros((0, self._model.vocab_size), np.float32)
        return Rows(
            np.stack([logits[row] for row in logit_rows]) if logit_rows else empty,
            {layer: np.concatenate(states) for layer, states in hidden.items()},
        )

    def commit(self, n_past: int, tree: TokenTree, path: Sequence[int]) -> None:
        """Notes where the rows of ``path`` are."""
        self._places = np.append(self._places[:n_past], self._first + np.asarray(path, int))

    def snapshot(self, start: int, stop: int) -> KVRows:
        places = self._places[start:stop]
        return {name: self._state.read_state(name)[:, :, places] for name in _STATES}

    def restore(self, start: int, stop: int, kv_rows: KVRows) -> None:
        self._drop_behind(start)
        end = self._end
        self._write(end, kv_rows)
        self._places = np.append(self._places, np.arange(end, end + stop - start))

    def close(self) -> None:
        """Releases the state."""
        del self._state

    @property
    def _end(self) -> int:
        """The row behind those of all committed tokens."""
        return int(self._places[-1]) + 1 if len(self._places) else 0

    def _drop_behind(self, n_past: int) -> None:
        """Forgets where later tokens are; moves rows together where many are hidden."""
        self._places = self._places[:n_past]
        if self._end - n_past > _MAX_HIDDEN_ROWS:
            self._write(0, self.snapshot(0, n_past))
            self._places = np.arange(n_past)

    def _write(self, first: int, kv_rows: KVRows) -> None:
        for name, rows in kv_rows.items():
            whole = np.array(self._state.read_state(name))
            whole[:, :, first : first + rows.shape[2]] = rows
            self._state.write_state(name, whole)

    def _run(self, part: PassPart, inputs: dict[str, Array]) -> Mapping[str, Array]:
        try:
            return self._model.functions[part.static.name].predict(inputs, state=self._state)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise SessionError(f"Core ML could not run the model: {reason}") from None

    def _inputs(
        self, pass_: Pass, n_past: int, part: PassPart, rows: Sequence[int]
    ) -> dict[str, Array]:
        """Returns the inputs of a function, filled up with rows that nobody looks at."""
        static, tree = part.static, pass_.tree
        new = slice(pass_.n_known + part.start, pass_.n_known + part.stop)
        return {
            INPUT_IDS: _filled(tree.tokens[new], static.n_rows)[np.newaxis],
            POSITION_IDS: _filled(n_past + np.array(tree.depths[new]), static.n_rows)[np.newaxis],
            PAST_LENGTH: np.array([self._first + new.start], np.int32),
            ATTENTION_BIAS: self._attention_bias(tree, new, static.n_rows),
            LOGIT_ROWS: _filled([row - part.start for row in rows], static.n_logits),
        }

    def _attention_bias(self, tree: TokenTree, new: slice, n_rows: int) -> Array:
        """Returns what is added to attention scores [1, 1, n_rows, rows of the state]."""
        bias = np.full((n_rows, self._n_rows), _MASKED)
        seen = bias[: new.stop - new.start]
        seen[:, self._places] = 0
        seen[:, self._first : self._first + len(tree)][tree.ancestry()[new]] = 0
        return bias[np.newaxis, np.newaxis]


def _filled(values: Sequence[int] | Array, n: int) -> Array:
    """Returns ``values`` and zeros, [n]."""
    filled = np.zeros(n, np.int32)
    filled[: len(values)] = values
    return filled
