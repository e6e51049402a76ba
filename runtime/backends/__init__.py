"""Sessions over what a bundle holds: one module per kind of graph."""

from __future__ import annotations

from pathlib import Path

from edgedec.models.errors import BundleError
from edgedec.models.manifest import ModelEntry
from edgedec.runtime.cores.affinity import Affinity
from edgedec.runtime.sessions.session import ModelSession


def open_session(
    folder: Path,
    entry: ModelEntry,
    threads: int,
    context: int,
    affinity: Affinity | None = None,
) -> ModelSession:
    """Returns a session over the model ``entry`` of the bundle at ``folder``.

    affinity: where its threads stay.

    Raises:
        BundleError: ONNX Runtime refuses the graph, it is not what the manifest states, or the
            kernels it needs are not built.
    """
    if entry.graph_kind == "fused":
        from edgedec.runtime.backends.fused import FusedSession

        session = FusedSession(folder / entry.graph, entry.config, threads, context, affinity)
        stated = entry.kv_format or "float16"
        if session.kv_format != stated:
            raise BundleError(
                f"{folder / entry.graph} has a KV cache of {session.kv_format}, the manifest "
                f"states {stated}: export the model again"
            )
        return session
    from edgedec.runtime.backends.portable import PortableSession

    return PortableSession(folder / entry.graph, entry.config, threads, context, affinity)
