"""What the ONNX Runtime backends share: options, loading, and errors in one line."""

from __future__ import annotations

from pathlib import Path

import onnxruntime

from edgedec.models.errors import BundleError
from edgedec.runtime.cores.affinity import Affinity

NO_GATES = (
    "this bundle's graph cannot leave sub-layers out: export the model again, as a fused graph"
)
_SEVERITY_FATAL = 4
"""What ONNX Runtime may print: errors it raises, too, and they are told in one line."""

_NO_AFFINITY = Affinity()


def open_graph(
    graph: Path,
    threads: int,
    custom_ops: Path | None = None,
    affinity: Affinity = _NO_AFFINITY,
) -> onnxruntime.InferenceSession:
    """Returns an ONNX Runtime session over ``graph`` on the CPU.

    affinity: where its threads stay; the calling one is the caller's to hold.
    custom_ops: library of the operators of a fused graph. Such a graph is final: ONNX Runtime's
        own rewriting is left off, which keeps weights where they are mapped.

    Raises:
        BundleError: The graph or its weights are refused.
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
        return onnxruntime.InferenceSession(str(graph), options, ["CPUExecutionProvider"])
    except Exception as error:  # its exceptions share no base of their own
        raise BundleError(
            f"ONNX Runtime refuses {graph} ({one_line(error)}); check it with "
            "`edgedec inspect --verify`, or export the model again"
        ) from None


def one_line(error: Exception) -> str:
    """Returns the message of ``error`` on one line of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."
