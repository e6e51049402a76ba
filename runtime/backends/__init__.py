"""Models over what a bundle holds, and what the backends of devices share.

The backend NAME is `targets/*/run_NAME.py`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from edgedec.models.errors import BundleError
from edgedec.models.graph import ANY_TRIPLE
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.backends.model_facts import GraphToRun
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.runtime.sequences.model import Model
from edgedec.system.machine import machine_triple, system_name
from edgedec.system.processes import after_fork_in_child
from edgedec.targets import GraphKind, device_module, find_graph_kind, graph_kinds


@dataclass(frozen=True)
class _Key:
    """What decides whether two who open a model may share one: its files, threads, device."""

    files: tuple[tuple[str, int, int, int], ...]  # path, inode, time and size of each
    threads: int
    affinity: Affinity
    providers: tuple[str, ...]


@dataclass
class _Shared:
    model: Model
    n_users: int = 0


_lock = threading.Lock()
_open: dict[_Key, _Shared] = {}
_inherited: list[Model] = []
"""In a forked process, what its parent had opened."""


def open_model(
    folder: Path, entry: ModelEntry, threads: int, affinity: Affinity | None = None
) -> Model:
    """Returns the model ``entry`` of the bundle at ``folder``, the one this process has if any.

    Whoever is given it gives it back with `release_model`.

    affinity: where its threads stay.

    Raises:
        BundleError: The graph was compiled for another machine, no backend of this edgedec runs it,
            ONNX Runtime refuses it, it is not what the manifest states, or the kernels it needs
            are not built.
    """
    affinity = affinity or Affinity()
    key = _Key(_files(folder, entry), threads, affinity, entry.contract.providers)
    with _lock:
        shared = _open.get(key)
        if shared is None:
            shared = _open[key] = _Shared(_new_model(folder, entry, threads, affinity))
        shared.n_users += 1
        return shared.model


def release_model(model: Model) -> None:
    """Gives a model of `open_model` back; the last one to do so closes it."""
    if any(model is inherited for inherited in _inherited):
        return
    with _lock:
        for key, shared in _open.items():
            if shared.model is model:
                shared.n_users -= 1
                if shared.n_users == 0:
                    del _open[key]
                    model.close()
                return
    model.close()


def _keep_inherited() -> None:
    """Leaves open for ever, in a forked process, what its parent opened.

    It computes, on one thread. Its end would wait for the others, which a fork leaves behind.
    """
    global _lock
    import ctypes

    _lock = threading.Lock()  # another thread may have had it
    for shared in _open.values():
        _inherited.append(shared.model)
        # Python empties that list when the process ends, and closes what nobody has any more.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(shared.model))
    _open.clear()


after_fork_in_child(_keep_inherited)


def _new_model(folder: Path, entry: ModelEntry, threads: int, affinity: Affinity) -> Model:
    contract, graph = entry.contract, folder / entry.graph
    _check_triple(graph, contract.triple)
    if contract.backend not in backend_names():
        raise BundleError(
            f"{graph} is for the backend {contract.backend}, which this edgedec does not have: "
            "install the edgedec that wrote the bundle, or export the model again"
        )
    kind = find_graph_kind(contract.backend)
    _check_system(graph, contract.backend, kind)
    kind.check_weights(entry)
    try:
        module = device_module("run", contract.backend)
    except ImportError as error:
        raise BundleError(
            f"{graph} is for the backend {contract.backend}, which needs {error.name}: "
            f"{_what_installs(error, kind)}"
        ) from None
    model: Model = module.open_model(GraphToRun(graph, entry.config, contract, threads, affinity))
    if entry.encoder is None:
        return model
    from edgedec.runtime.backends.encoder import Encoder, EncoderDecoder

    encoder = folder / entry.encoder
    providers = contract.providers
    return EncoderDecoder(model, Encoder(encoder, entry.config, providers, threads, affinity))


def backend_names() -> tuple[str, ...]:
    """Returns the backends there are, sorted."""
    return graph_kinds()


def _check_triple(graph: Path, triple: str) -> None:
    if triple not in (ANY_TRIPLE, machine_triple()):
        raise BundleError(
            f"{graph} was compiled for {triple}, this machine is {machine_triple()}: export the "
            "model again for it"
        )


def _check_system(graph: Path, backend: str, kind: GraphKind) -> None:
    if kind.system is not None and system_name() != kind.system.name:
        raise BundleError(
            f"{graph} is for {backend}, which {kind.system.text} runs, this machine is "
            f"{machine_triple()}: run it there, or export the model again with --target cpu"
        )


def _files(folder: Path, entry: ModelEntry) -> tuple[tuple[str, int, int, int], ...]:
    sizes = []
    for name in entry.files:
        path = (folder / name).resolve()
        try:
            status = path.stat()
        except OSError as error:
            raise BundleError(f"cannot read {path}: {error.strerror}") from None
        sizes.append((str(path), status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(sizes)


def _what_installs(error: ImportError, kind: GraphKind) -> str:
    """Returns the command that installs what an import lacks; raises any other error again."""
    if (package := kind.packages.get(error.name or "")) is not None:
        return f"pip install {package}"
    if error.name in kind.imports:
        from edgedec.models.installation import install_command

        return install_command(kind.extra)
    raise error
