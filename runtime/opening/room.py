"""What is said before a model reads weights that memory has no room for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from edgedec.system.files import read_rate

_log = logging.getLogger(__name__)


def warn_of_disk(sizes: Mapping[Path, int], room: int) -> None:
    """Says how slow passes will be if weights of ``sizes`` have no room in memory.

    Weights are mapped: what has no room is read from the disk again in each pass.

    room: bytes of memory that are available.
    """
    rate = read_rate(max(sizes, key=lambda path: sizes[path]))
    _log.warning(disk_warning(sum(sizes.values()), room, rate))


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
