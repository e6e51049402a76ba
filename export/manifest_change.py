"""Changes what the manifest of a bundle says, after work that took a while."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from edgedec.models.errors import ConfigError
from edgedec.models.manifest import MANIFEST_NAME, BundleManifest, fingerprint_of, read_manifest
from edgedec.system.files import replace_text


def check_writable(bundle: Path) -> None:
    """Raises a ConfigError where ``bundle`` is there and nothing can be written into it."""
    if bundle.exists() and not os.access(bundle, os.W_OK):
        raise ConfigError(f"{bundle} cannot be written: mend that, or copy it elsewhere")


def change_manifest(
    bundle: Path, known: BundleManifest, change: Callable[[BundleManifest], BundleManifest]
) -> None:
    """Replaces the manifest that a bundle has now by what ``change`` makes of it, at once.

    known: the manifest when the work began. Others may have changed it since, for their part.

    Raises:
        ConfigError: The bundle has other models since then, or cannot be written.
        BundleError: It is broken, or would be.
    """
    now = read_manifest(bundle)
    if _models(now) != _models(known):
        raise ConfigError(
            f"{bundle} was exported anew meanwhile, and its models are others: nothing was "
            "written; run the command again"
        )
    changed = change(now)
    BundleManifest.from_dict(changed.to_dict())
    text = json.dumps(changed.to_dict(), indent=2, allow_nan=False)
    try:
        replace_text(bundle / MANIFEST_NAME, text + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write {bundle}: {error.strerror or error}") from None


def _models(manifest: BundleManifest) -> dict[str, str]:
    return {name: fingerprint_of(manifest, name) for name in manifest.models}
