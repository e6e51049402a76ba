"""Where the KV maps of a bundle are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from edgedec.models.config import ModelConfig
from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.kv_maps import (
    AUXILIARY_KV_MAPS,
    DRAFT_KV_MAPS,
    KVMapsEntry,
    ModelKVMapsEntry,
    model_maps,
    own_maps,
)
from edgedec.models.manifest import BundleManifest, fingerprint_of
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.decoding.prefilling import Auxiliary
from edgedec.runtime.drafting.draft_kv_maps import DraftKVMaps
from edgedec.runtime.drafting.find_labs import lab_module
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
    """
    draft, config = manifest.draft_name, manifest.target.config
    opened = _opener_of(DRAFT_KV_MAPS, folder, manifest, (manifest.target_name, draft), threads,
                        affinity)  # fmt: skip
    return None if opened is None else lambda pool: DraftKVMaps(opened(), config, pool)


def find_auxiliary(
    folder: Path, manifest: BundleManifest, threads: int, affinity: Affinity
) -> Callable[[SequencePool], Auxiliary] | None:
    """Returns what opens the maps from the draft to the target model; None where there are none.

    It is called with a pool of the draft model's.
    """
    draft = manifest.draft_name
    opened = _opener_of(AUXILIARY_KV_MAPS, folder, manifest, (draft, manifest.target_name), threads,
                        affinity)  # fmt: skip
    if opened is None or draft is None:
        return None
    config = manifest.models[draft].config
    return partial(_open_auxiliary, config, opened)


def _open_auxiliary(
    config: ModelConfig, open_maps: Callable[[], KVPredictor], pool: SequencePool
) -> Auxiliary:
    found: Auxiliary = lab_module("prefill", "auxiliary").AuxiliaryModel(pool, config, open_maps())
    return found


def _opener_of(
    kind: str,
    folder: Path,
    manifest: BundleManifest,
    names: tuple[str | None, str | None],
    threads: int,
    affinity: Affinity,
) -> Callable[[], KVPredictor] | None:
    """Returns what opens maps from one model to another, called ``names``, if there are some.

    Raises:
        BundleError: They are other models', or of another KV format.
    """
    entry, (read, written) = model_maps(manifest.auxiliary, kind), names
    if entry is None or read is None or written is None:
        return None
    source, model = (fingerprint_of(manifest, name) for name in (read, written))
    config, entry_of = manifest.models[read].config, manifest.models[written]
    check = partial(entry.check_fits, source, model, entry_of.contract.kv.format)
    _check(folder, entry_of, check)
    width = config.n_kv_numbers
    return _opener(folder, entry, 0, width, entry_of, threads, affinity)


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
    found: KVPredictor = opener(graph, depth, width, threads, providers, affinity)
    return found
