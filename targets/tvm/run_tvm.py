"""Programs that TVM compiled: edgedec's own operators, KV cache written in place.

Needs neither ONNX Runtime nor TVM: the package `tvm_ffi`, and the libraries in the bundle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgedec.kernels.tvm_program import RUNTIME_NAMES, Machine, Program, as_array, as_tensor
from edgedec.models.errors import BundleError, SessionError
from edgedec.models.fields import shown
from edgedec.models.graph import (
    LOGITS,
    ROW_STATS,
    WEIGHTS_BESIDE,
    GraphContract,
    hidden_port,
    stats_port,
)
from edgedec.runtime.backends import running_passes as running_passes
from edgedec.runtime.backends.in_place import (
    InPlaceModel,
    check_kv_cache,
)
from edgedec.runtime.backends.kv_cache import Array
from edgedec.runtime.backends.model_facts import GraphToRun
from edgedec.runtime.backends.pass_arrays import PassArrays, PassShape, end_of, gathered
from edgedec.runtime.backends.trust import check_trusted
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.rows import Rows

_MAX_SHAPES = 128


class TvmModel(InPlaceModel[Machine, "_Runs"]):
    """A `Model` over a compiled program."""

    def __init__(self, graph: GraphToRun) -> None:
        super().__init__(graph)
        check_kv_cache(graph.path, self.contract, self.config)
        self._program = _open_program(graph.path)
        _check_ports(graph.path, self._program, self.contract)
        self._opened = self._program.machine(graph.threads, self.affinity.processors)

    def new_runs(self, shared_inputs: Mapping[str, Array]) -> _Runs:
        """Returns what runs passes whose inputs of these names stay the same."""
        return _Runs(self, shared_inputs)

    def close(self) -> None:
        """Releases the program and its threads."""
        if self._opened is not None:
            self._opened.close()
        super().close()
        self._program.close()


def open_model(graph: GraphToRun) -> TvmModel:
    """Returns the model of ``graph``; raises a BundleError where it is not what is stated."""
    return TvmModel(graph)


class _Runs:
    """Runs of a program over the same memory for keys and values."""

    def __init__(self, model: TvmModel, shared_inputs: Mapping[str, Array]) -> None:
        self._model = model
        self._no_logits = np.empty((0, model.config.n_logits), np.float32)
        self._places = {name: place for place, name in enumerate(model.contract.outputs)}
        self._bound: dict[PassShape, tuple[PassArrays, list[Any]]] = {}
        self._shared = {name: as_tensor(array) for name, array in shared_inputs.items()}
        self._take_tables(model.tables.up_to(1))

    def run(self, passes: Sequence[Pass]) -> Rows:
        """Returns the asked rows of all passes, in memory of their own."""
        model = self._model
        affinity, machine = model.affinity, model.opened
        tables = model.tables.up_to(end_of(passes))
        if tables is not self._tables:
            self._take_tables(tables)
        shape, integers = gathered(passes, model.n_layers, model.capabilities)
        arrays, inputs = self._inputs_of(shape)
        arrays.fill(passes, integers)
        with affinity.held():
            outputs = _Run(machine, inputs).outputs()
        return self._rows(outputs, shape)

    def _take_tables(self, tables: Mapping[str, Array]) -> None:
        """Takes tables of positions, which are longer than those before."""
        self._tables = tables
        self._shared |= {name: as_tensor(array) for name, array in tables.items()}
        self._bound.clear()

    def _rows(self, outputs: Any, shape: PassShape) -> Rows:
        def output(name: str) -> Any:
            return as_array(outputs[self._places[name]])

        logits = output(LOGITS)[0] if shape.has_logits else self._no_logits
        hidden = {i: output(hidden_port(port))[0] for i, port in shape.hidden}
        stats = RowStats(**{name: output(stats_port(name)) for name in ROW_STATS})
        return Rows(logits, hidden, stats)

    def _inputs_of(self, shape: PassShape) -> tuple[PassArrays, list[Any]]:
        """Returns the arrays of a shape of pass, and the tensors of all inputs over them."""
        if shape not in self._bound:
            if len(self._bound) >= _MAX_SHAPES:
                self._bound.clear()
            arrays = PassArrays(shape, self._model.config.hidden_size)
            inputs = {name: as_tensor(array) for name, array in arrays.by_port().items()}
            inputs |= self._shared
            self._bound[shape] = arrays, [inputs[name] for name in self._model.contract.inputs]
        return self._bound[shape]


class _Run:
    """One pass; `running_passes.end_passes` ends it from another thread."""

    def __init__(self, machine: Machine, inputs: list[Any]) -> None:
        self._machine = machine
        self._inputs = inputs
        self._is_ended = False

    def outputs(self) -> Any:
        """Returns what the program returns.

        Raises:
            SessionError: It fails.
            KeyboardInterrupt: The pass was ended.
        """
        running_passes.begin(self)
        try:
            outputs = self._machine.run(self._inputs)
        except RuntimeError as error:
            if self._is_ended:
                raise KeyboardInterrupt from None
            raise SessionError(f"the compiled graph could not run: {error}") from None
        finally:
            running_passes.finish(self)
        if self._is_ended:  # while it waited for its turn
            raise KeyboardInterrupt
        return outputs

    def end(self) -> None:
        """Ends the pass, between two nodes of its graph."""
        self._is_ended = True
        self._machine.stop(self._inputs)


def _open_program(graph: Path) -> Program:
    """Returns the program ``graph``, of which code is executed here for the first time."""
    runtime = [graph.parent / name for name in RUNTIME_NAMES]
    for path in (graph, *runtime):
        check_trusted(path)
    try:
        program = Program(graph, graph.parent / WEIGHTS_BESIDE, runtime)
    except (RuntimeError, OSError, ValueError) as error:
        raise BundleError(
            f"{graph} cannot be opened ({error}); check it with `edgedec inspect --verify`, or "
            "export the model again"
        ) from None
    return program


def _check_ports(graph: Path, program: Program, contract: GraphContract) -> None:
    """Raises a BundleError unless the program has the ports that the contract states, in order."""
    for what, ports, names in (
        ("inputs", program.inputs, contract.inputs),
        ("outputs", program.outputs, contract.outputs),
    ):
        if ports != names:
            raise BundleError(
                f"{graph} has {what} {shown(', '.join(ports))}, the manifest states "
                f"{shown(', '.join(names))}: export the model again"
            )
