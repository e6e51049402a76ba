"""Models over what a bundle holds: one module per kind of graph."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from edgedec.models.errors import BundleError
from edgedec.models.manifest import ModelEntry
from edgedec.runtime.cores.affinity import Affinity
from edgedec.runtime.sessions.model import Model


@dataclass(frozen=True)
class _Key:
    """What decides whether two who open a model may share one: its files, and its threads."""

    files: tuple[tuple[str, int, int, int], ...]  # path, inode, time and size of each
    threads: int
    affinity: Affinity


@dataclass
class _Shared:
    model: Model
    n_users: int = 0


_lock = threading.Lock()
_open: dict[_Key, _Shared] = {}


def open_model(
    folder: Path, entry: ModelEntry, threads: int, affinity: Affinity | None = None
) -> Model:
    """Returns the model ``entry`` of the bundle at ``folder``, the one this process has if any.

    Whoever is given it gives it back with `release_model`.

    affinity: where its threads stay.

    Raises:
        BundleError: ONNX Runtime refuses the graph, it is not what the manifest states, or the
            kernels it needs are not built.
    """
    affinity = affinity or Affinity()
    key = _Key(_files(folder, entry), threads, affinity)
    with _lock:
        shared = _open.get(key)
        if shared is None:
            shared = _open[key] = _Shared(_new_model(folder, entry, threads, affinity))
        shared.n_users += 1
        return shared.model


def release_model(model: Model) -> None:
    """Gives a model of `open_model` back; the last one to do so closes it."""
    with _lock:
        for key, shared in _open.items():
            if shared.model is model:
                shared.n_users -= 1
                if shared.n_users == 0:
                    del _open[key]
                    model.close()
                return
    model.close()


def _new_model(folder: Path, entry: ModelEntry, threads: int, affinity: Affinity) -> Model:
    if entry.graph_kind == "fused":
        from edgedec.runtime.backends.fused import FusedModel

        fused = FusedModel(
            folder / entry.graph, entry.config, threads, entry.hidden_layers, affinity
        )
        stated = entry.kv_format or "float16"
        if fused.kv_format != stated:
            raise BundleError(
                f"{folder / entry.graph} has a KV cache of {fused.kv_format}, the manifest "
                f"states {stated}: export the model again"
            )
        return fused
    from edgedec.runtime.backends.portable import PortableModel

    return PortableModel(folder / entry.graph, entry.config, threads, entry.hidden_layers, affinity)


def _files(folder: Path, entry: ModelEntry) -> tuple[tuple[str, int, int, int], ...]:
    found = []
    for name in entry.files:
        path = (folder / name).resolve()
        try:
            status = path.stat()
        except OSError as error:
            raise BundleError(f"cannot read {path}: {error.strerror}") from None
        found.append((str(path), status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)
