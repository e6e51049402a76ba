"""Where the KV maps of a bundle are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.graph import CODE_BACKENDS
from edgedec.models.kv_maps import KV_MAPS
from edgedec.models.manifest import BundleManifest, fingerprint_of
from edgedec.runtime.cores.affinity import Affinity
from edgedec.runtime.sessions.model import KVPredictor


def find_predictor(
    folder: Path, manifest: BundleManifest, threads: int, affinity: Affinity
) -> Callable[[], KVPredictor] | None:
    """Returns what opens the bundle's KV maps; None where it has none.

    Raises:
        BundleError: They are another model's, or of another KV format.
    """
    entry, target = manifest.auxiliary.get(KV_MAPS), manifest.target
    if entry is None:
        return None
    if target.contract.backend in CODE_BACKENDS:
        raise BundleError(
            f"{folder} has KV maps, an ONNX graph, beside a compiled graph: export it again"
        )
    try:
        fingerprint = fingerprint_of(manifest, manifest.target_name)
        entry.check_fits(fingerprint, target.config, target.contract.kv.format)
    except ConfigError as error:
        raise BundleError(str(error)) from None
    return partial(
        _open_maps, folder / entry.graph, entry.exit_layer, target.config.hidden_size, threads,
        target.contract.providers, affinity,
    )  # fmt: skip


def _open_maps(
    graph: Path,
    depth: int,
    hidden_size: int,
    threads: int,
    providers: tuple[str, ...],
    affinity: Affinity,
) -> KVPredictor:
    from edgedec.runtime.backends._kv_maps import FusedKVMaps

    return FusedKVMaps(graph, depth, hidden_size, threads, providers, affinity)
