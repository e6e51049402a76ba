"""Names of models wherever a bundle is taken: exported once, and found again.

What it imports is imported where there is a name to look up; a path must not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import platformdirs

from edgedec.apps.user_paths import user_path
from edgedec.models.errors import ConfigError

if TYPE_CHECKING:
    from edgedec.export.library import Library

MaybePath = TypeVar("MaybePath", Path, Path | None)


def open_library() -> Library:
    """Returns the models by name on this machine."""
    from edgedec.apps.export import needs_export_extra

    with needs_export_extra():
        from edgedec.export.library import Library

    return Library(Path(platformdirs.user_cache_dir("edgedec")))


def named_bundle(given: MaybePath) -> MaybePath:
    """Returns the bundle that ``given`` is or names, made now if need be.

    What is neither a path that exists nor a known name is returned as it is.

    Raises:
        EdgedecError: The named model cannot be exported.
    """
    if given is None or given.exists() or not _may_be_name(given):
        return given
    try:
        library = open_library()
    except ConfigError:  # nothing has a name where nothing can be exported
        return given
    name = str(given)
    bundle = library.bundle(name)
    if bundle.is_dir():
        return bundle
    source = library.source(name)
    if source is None:
        return given
    _export(source, bundle, name)
    return bundle


def find_bundle(text: str, roots: Sequence[Path] = ()) -> Path:
    """Returns the bundle that a setting means: a path, also below a root, or the name of a model.

    Raises:
        ConfigError: It names a model whose bundle was not made yet, or a user who is not here.
    """
    path = user_path(text)
    for candidate in (path, *(root / path for root in roots)):
        if candidate.exists():
            return candidate
    try:
        library = open_library()
    except ConfigError:  # nothing has a name where nothing can be exported
        return path
    bundle = library.bundle(text)
    if not bundle.is_dir() and library.source(text) is not None:
        raise ConfigError(f"{text} has no bundle yet: run edgedec inspect {text} once, to make it")
    return bundle if bundle.is_dir() else path


def _may_be_name(given: Path) -> bool:
    """Whether ``given`` is unlike a path to a bundle, so that nothing is imported for a typo."""
    return given.suffix != ".edgedec" and not given.is_absolute() and len(given.parts) <= 3


def _export(source: str, bundle: Path, name: str) -> None:
    from edgedec.apps.console.progress import ProgressBars, bytes_amount
    from edgedec.apps.console.terminal import note
    from edgedec.export import pipeline
    from edgedec.export.config import ExportConfig

    note(f"exporting {name} once, to {bundle}")
    with ProgressBars(bytes_amount, has_lines=True) as bars:
        pipeline.export(ExportConfig(source=source, destination=bundle), bars.report)
