"""What the ONNX Runtime backends share: options, loading, and errors in one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import onnxruntime

from edgedec.models.config import ModelConfig
from edgedec.models.errors import BundleError, SessionError
from edgedec.models.graph import (
    CONV_TAPS,
    K_CACHE,
    K_RING,
    LAYER_GATES,
    LOGITS,
    MTP_IDS,
    MTP_LOG_PROBS,
    N_TOP,
    RECURRENT_ROWS,
    STATES,
    V_CACHE,
    V_RING,
    GraphContract,
    hidden_port,
    layer_of_past,
    rows_port,
    state_port,
)
from edgedec.models.kv_formats import kv_panels_of
from edgedec.models.position_tables import position_tables
from edgedec.runtime.backends import running_passes as running_passes
from edgedec.runtime.backends.graph_checks import check_names, check_shape, one_line
from edgedec.runtime.sequences.affinity import Affinity

T = TypeVar("T")

_ELEMENTS = {"tensor(float16)": "float16", "tensor(float)": "float32", "tensor(uint8)": "uint8"}
_SEVERITY_FATAL = 4
"""What ONNX Runtime may print: it raises errors, too, and our messages give those in one line."""

_NO_MEMORY = re.compile("bad_alloc|failed to allocate|cannot allocate|out of memory", re.IGNORECASE)
"""In what ONNX Runtime says where memory is short, on the host or on a device."""

_LESS_MEMORY = "use a smaller --context or a smaller model, or end other programs"

_NO_AFFINITY = Affinity()


def open_graph(
    graph: Path,
    threads: int,
    providers: Sequence[str],
    custom_ops: Path | None = None,
    affinity: Affinity = _NO_AFFINITY,
) -> onnxruntime.InferenceSession:
    """Returns an ONNX Runtime session over ``graph``.

    providers: ONNX Runtime's; the first that is there runs it.
    affinity: where its threads stay; the calling one is the caller's to hold.
    custom_ops: library of the operators of a fused graph. Such a graph is final: ONNX Runtime's
        own rewriting is left off, which keeps weights where they are mapped.

    Raises:
        BundleError: The graph or its weights are refused.
        SessionError: No memory is left.
    """
    onnxruntime.disable_telemetry_events()  # for those who imported it before edgedec
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _SEVERITY_FATAL
    # Threads that go on waiting at full speed after a pass take a processor from the other model
    # of a pair (its passes took 1.7 to 2.9 times as long), and charge from an idle laptop.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if affinity.of_pool:
        options.add_session_config_entry("session.intra_op_thread_affinities", affinity.of_pool)
    try:
        if custom_ops is not None:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.register_custom_ops_library(str(custom_ops))
        return onnxruntime.InferenceSession(str(graph), options, list(providers))
    except Exception as error:  # its exceptions share no base of their own
        if _NO_MEMORY.search(str(error)):
            raise SessionError(f"no memory is left to open {graph}: {_LESS_MEMORY}") from None
        raise BundleError(
            f"ONNX Runtime refuses {graph} ({one_line(error)}); check it with "
            "`edgedec inspect --verify`, or export the model again"
        ) from None


class PassRunner:
    """Runs one pass at a time; `running_passes.end_passes` ends it from another thread."""

    def __init__(self) -> None:
        self._options = onnxruntime.RunOptions()
        # Asked for before each run; an entry that is not there costs a thrown exception, 50 us.
        self._options.add_run_config_entry("gpu_graph_id", "-1")

    def run(self, call: Callable[[onnxruntime.RunOptions], T]) -> T:
        """Returns what ``call`` returns, which hands the options on to ONNX Runtime.

        Raises:
            SessionError: ONNX Runtime fails.
            KeyboardInterrupt: The pass was ended.
        """
        self._options.terminate = False
        running_passes.begin(self)
        try:
            return call(self._options)
        except Exception as error:
            if self._options.terminate:
                raise KeyboardInterrupt from None
            if _NO_MEMORY.search(str(error)):
                raise SessionError(f"no memory is left for a pass: {_LESS_MEMORY}") from None
            raise SessionError(f"ONNX Runtime could not run the model: {one_line(error)}") from None
        finally:
            running_passes.finish(self)

    def end(self) -> None:
        """Ends the pass under way, between two nodes of its graph."""
        self._options.terminate = True


def check_ports(
    graph: Path,
    session: onnxruntime.InferenceSession,
    contract: GraphContract,
    config: ModelConfig,
) -> None:
    """Raises a BundleError unless the graph has the ports that contract and config state."""
    for what, ports, names in (
        ("inputs", session.get_inputs(), contract.inputs),
        ("outputs", session.get_outputs(), contract.outputs),
    ):
        check_names(graph, what, [value.name for value in ports], names)
    kv = contract.kv
    element = kv_panels_of(kv.format).element if kv.kind == "panels" else kv.format
    for value in session.get_inputs():
        if value.name not in (K_CACHE, V_CACHE, K_RING, V_RING, *contract.past_ports):
            continue
        if (element_type := _ELEMENTS.get(value.type, value.type)) != element:
            raise BundleError(
                f"{graph} has a KV cache of {element_type}, the manifest states "
                f"{contract.kv.format}, which is kept as {element}: export the model again"
            )
    _check_sizes(graph, session, contract, config)


def _check_sizes(
    graph: Path,
    session: onnxruntime.InferenceSession,
    contract: GraphContract,
    config: ModelConfig,
) -> None:
    """Raises unless the sizes that the graph fixes are those of its configuration."""
    n_layers, n_heads = len(config.kv_layers), config.n_kv_heads
    recurrent, row_size = contract.kv.recurrent_layers, config.recurrence.row_size
    n_rings = len(contract.kv.ring_layers)
    expected: dict[str, tuple[int | None, ...]] = {}
    for names, n, is_ring in (
        ((K_CACHE, V_CACHE), n_layers - n_rings, False),
        ((K_RING, V_RING), n_rings, True),
    ):
        if contract.kv.kind == "panels":
            panels = kv_panels_of(contract.kv.format)
            shapes = panels.shapes(None, None, config.kv_head_size(is_ring))
            expected |= {port: (n, n_heads, *of) for port, of in zip(names, shapes, strict=True)}
    expected |= {
        RECURRENT_ROWS: (len(recurrent), None, row_size),
        STATES: (len(recurrent), 2, config.recurrence.n_state_floats),
        CONV_TAPS: (None, config.recurrence.conv_size),
        **dict.fromkeys(map(rows_port, recurrent), (None, None, row_size)),
        **dict.fromkeys(map(state_port, recurrent), config.recurrence.state_sizes),
        LAYER_GATES: (2 * config.n_layers,),
        LOGITS: (None, None, config.n_logits),
        **{name: (None, width) for name, width in position_tables(config).items()},
        **{hidden_port(i): (None, None, config.hidden_size) for i in contract.can.hidden},
        **{
            port: (None, n_heads, None, config.head_size_of(layer_of_past(port)))
            for port in contract.past_ports
        },
        **dict.fromkeys((MTP_IDS, MTP_LOG_PROBS), (None, contract.can.mtp, N_TOP)),
    }
    for port in (*session.get_inputs(), *session.get_outputs()):
        check_shape(graph, port.name, port.shape, expected.get(port.name))
    if contract.past_ports and len(contract.past_ports) != 2 * n_layers:
        raise BundleError(
            f"{graph} keeps {len(contract.past_ports)} arrays of keys and values, the manifest's "
            f"config has {n_layers} layers with attention: export the model again"
        )
