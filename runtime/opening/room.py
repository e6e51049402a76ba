"""Whether memory has room for a model's weights, said before the model reads them."""

from __future__ import annotations

import logging
from pathlib import Path

from edgedec.models.manifest import BundleManifest
from edgedec.models.model_entry import ModelEntry
from edgedec.system.files import read_rate
from edgedec.system.memory import memory_bytes

_log = logging.getLogger(__name__)


def warn_of_disk(folder: Path, manifest: BundleManifest, entry: ModelEntry) -> None:
    """Says how slow passes will be if the model is larger than the memory that is available.

    Weights are mapped: what has no room is read from the disk again in each pass.
    """
    sizes = {path: manifest.files[path].n_bytes for path in entry.files}
    n_bytes, (total, available) = sum(sizes.values()), memory_bytes()
    room = total if available is None else available
    if n_bytes <= room:
        return
    rate = read_rate(folder / max(sizes, key=lambda path: sizes[path]))
    _log.warning(disk_warning(n_bytes, room, rate))


def disk_warning(n_bytes: int, room: int, rate: float | None) -> str:
    """Returns what is said of weights of ``n_bytes`` if ``room`` bytes of memory are available.

    rate: bytes a second that the disk gives, if known.
    """
    speed = f" (about {rate / n_bytes:.2g} passes/s)" if rate else ""
    return (
        f"the model has {n_bytes / 1e9:.2f} GB and {room / 1e9:.2f} GB of memory are available: "
        f"each pass reads up to {n_bytes / 1e9:.2f} GB from the disk{speed}. Drafts help, since "
        "one pass checks several tokens; a smaller model is faster"
    )
