"""Where the KV maps of a bundle are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.kv_maps import (
    KVMapsEntry,
    ModelKVMapsEntry,
    draft_maps,
    own_maps,
)
from edgedec.models.manifest import BundleManifest, fingerprint_of
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.drafting.draft_kv_maps import DraftKVMaps
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.runtime.sequences.model import KVPredictor
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.targets import device_module, library_suffixes


def find_predictor(
    folder: Path, manifest: BundleManifest, threads: int, affinity: Affinity
) -> Callable[[], KVPredictor] | None:
    """Returns what opens the maps from the target's first layers; None where there are none.

    Raises:
        BundleError: They are another model's, or of another KV format.
    """
    entry, target = own_maps(manifest.auxiliary), manifest.target
    if entry is None:
        return None
    fingerprint = fingerprint_of(manifest, manifest.target_name)
    check = partial(entry.check_fits, fingerprint, target.config, target.contract.kv.format)
    _check(folder, target, check)
    return _opener(
        folder, entry, entry.exit_layer, target.config.hidden_size, target, threads, affinity
    )


def find_draft_kv_maps(
    folder: Path, manifest: BundleManifest, threads: int, affinity: Affinity
) -> Callable[[SequencePool], DraftKVMaps] | None:
    """Returns what opens the maps from the target to the draft model; None where there are none.

    It is called with a pool of the draft model's for texts that are read with them.

    Raises:
        BundleError: They are other models', or of another KV format.
    """
    entry, target, draft = draft_maps(manifest.auxiliary), manifest.target, manifest.draft_name
    if entry is None or draft is None:
        return None
    written = manifest.models[draft]
    source, model = (fingerprint_of(manifest, name) for name in (manifest.target_name, draft))
    _check(folder, written, partial(entry.check_fits, source, model, written.contract.kv.format))
    width = target.config.n_kv_numbers
    opened = _opener(folder, entry, 0, width, written, threads, affinity)
    return lambda pool: DraftKVMaps(opened(), target.config, pool)


def _check(folder: Path, model: ModelEntry, check: Callable[[], None]) -> None:
    """Raises a BundleError where ``check`` fails, or the model's graph is compiled code."""
    if library_suffixes(model.contract.backend):
        raise BundleError(
            f"{folder} has KV maps, an ONNX graph, beside a compiled graph: export it again"
        )
    try:
        check()
    except ConfigError as error:
        raise BundleError(str(error)) from None


def _opener(
    folder: Path,
    entry: KVMapsEntry | ModelKVMapsEntry,
    depth: int,
    width: int,
    model: ModelEntry,
    threads: int,
    affinity: Affinity,
) -> Callable[[], KVPredictor]:
    """Returns what opens maps that write the KV cache of ``model``."""
    return partial(
        _open_maps, folder / entry.graph, depth, width, threads, model.contract.providers, affinity
    )


def _open_maps(
    graph: Path,
    depth: int,
    width: int,
    threads: int,
    providers: tuple[str, ...],
    affinity: Affinity,
) -> KVPredictor:
    opener = device_module("run", "kv_maps").FusedKVMaps
    predictor: KVPredictor = opener(graph, depth, width, threads, providers, affinity)
    return predictor
