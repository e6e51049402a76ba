"""Models as command lines and settings name them. `export.named_models` says what they mean.

What it imports is imported where there is something to look up; a bundle must not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from edgedec.apps.user_paths import user_path
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import MANIFEST_NAME, read_manifest

if TYPE_CHECKING:
    from edgedec.export.library import Library
    from edgedec.export.named_models import OnProgress

MaybePath = TypeVar("MaybePath", Path, Path | None)


def open_library() -> Library:
    """Returns the models by name on this machine."""
    from edgedec.apps.exporter import needs_exporter

    with needs_exporter():
        from edgedec.export.library import user_library

        return user_library()


def named_bundle(bundle: MaybePath) -> MaybePath:
    """Returns the bundle that ``bundle`` is or names, made now if need be.

    Raises:
        EdgedecError: Nothing is called so, or the model cannot be exported.
    """
    if bundle is None or (bundle / MANIFEST_NAME).is_file():
        return bundle
    from edgedec.apps.exporter import needs_exporter

    with needs_exporter():
        from edgedec.export.named_models import bundle_of

        if " " in str(bundle) and not bundle.exists():
            raise ConfigError(
                f"there is no bundle called {str(bundle)!r}: if that is the prompt, name the "
                "bundle before it, as in: smollm2-135m-instruct PROMPT"
            )
        return bundle_of(bundle, _announced)


def find_bundle(text: str, roots: Sequence[Path] = ()) -> Path:
    """Returns the bundle that a setting means: a path, also below a root, or the name of a model.

    Raises:
        ConfigError: Nothing is called so, its bundle was not made yet, or its path names a user who
            is not here.
    """
    path = user_path(text)
    existing = next((p for p in (path, *(root / path for root in roots)) if p.exists()), path)
    if (existing / MANIFEST_NAME).is_file():
        return existing
    from edgedec.apps.exporter import needs_exporter

    with needs_exporter():
        from edgedec.export.named_models import what_is_meant

    meant = what_is_meant(existing if existing.exists() else text)
    if not meant.is_made:
        raise ConfigError(f"{text} has no bundle yet: run edgedec inspect {text} once, to make it")
    return meant.bundle


@contextmanager
def _announced(text: str, bundle: Path) -> Iterator[OnProgress]:
    """Says that a model is exported once its files were opened: what is none is refused first."""
    from edgedec.apps.console.progress import ProgressBars, bytes_amount
    from edgedec.apps.console.terminal import note

    with ExitStack() as stack:
        bars: ProgressBars | None = None

        def report(phase: str, done: int, total: int) -> None:
            nonlocal bars
            if bars is None:
                note(f"exporting {text} once, to {bundle}")
                bars = stack.enter_context(ProgressBars(bytes_amount, has_lines=True))
            bars.report(phase, done, total)

        yield report
    if (head := read_manifest(bundle, are_hashes_checked=False).head) is not None:
        note(f"with a draft head of the kind {head.kind}, which decoding uses where that is faster")
