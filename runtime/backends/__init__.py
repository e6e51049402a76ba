"""Sessions over what a bundle holds: one module per kind of graph."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from edgedec.models.errors import BundleError
from edgedec.models.graph import ANY_TRIPLE
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
        BundleError: The graph was compiled for another machine, no backend of this edgedec runs it,
            ONNX Runtime refuses it, it is not what the manifest states, or the kernels it needs
            are not built.
    """
    contract, graph = entry.contract, folder / entry.graph
    _check_triple(graph, contract.triple)
    if contract.backend == "fused":
        from edgedec.runtime.backends.fused import FusedSession

        session = FusedSession(graph, entry.config, threads, context, affinity)
        if session.kv_format != contract.kv.format:
            raise BundleError(
                f"{graph} has a KV cache of {session.kv_format}, the manifest states "
                f"{contract.kv.format}: export the model again"
            )
        return session
    if contract.backend == "portable":
        from edgedec.runtime.backends.portable import PortableSession

        return PortableSession(graph, entry.config, threads, context, affinity)
    raise BundleError(
        f"{graph} is for the backend {contract.backend}, which this edgedec does not have: install "
        "the edgedec that wrote the bundle, or export the model again"
    )


def machine_triple() -> str:
    """Returns the processor and system of this machine, as contracts name them."""
    system = {"linux": "linux-gnu", "darwin": "apple-darwin", "win32": "windows"}
    return f"{platform.machine().lower()}-{system.get(sys.platform, sys.platform)}"


def _check_triple(graph: Path, triple: str) -> None:
    if triple not in (ANY_TRIPLE, machine_triple()):
        raise BundleError(
            f"{graph} was compiled for {triple}, this machine is {machine_triple()}: export the "
            "model again for it"
        )
