"""Whether a bundle is still the one that was loaded."""

from __future__ import annotations

from pathlib import Path

from edgedec.models.manifest import MANIFEST_NAME

Stamp = tuple[int, int, int] | None
"""Tells one manifest from another that took its place; None where there is none."""


def stamp_of(bundle: Path) -> Stamp:
    """Returns the stamp of a bundle as it is now."""
    try:
        status = (bundle / MANIFEST_NAME).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
