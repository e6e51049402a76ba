"""What users mean by a model: a bundle, a file or folder of weights, or a name. Decided here alone.

A bundle that has to be made is made once, with the defaults of `edgedec export`, in the user's
cache. The compiler is imported only for that.
"""

from __future__ import annotations

import difflib
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from edgedec.export.checkpoints.catalogue import CATALOGUE
from edgedec.export.checkpoints.hub import HubName
from edgedec.export.library import Library, user_library
from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.manifest import MANIFEST_NAME, read_manifest
from edgedec.system.locks import lock_file

OnProgress = Callable[[str, int, int], None]
Announce = Callable[[str, Path], AbstractContextManager[OnProgress]]
"""Called with what is exported and its bundle, before; yields who hears of the progress."""

_GGUF = b"GGUF"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Meant:
    """A model that a user named.

    bundle: where its bundle is, or will be. source: what an export reads to make it; None if there
    is nothing to make.
    """

    text: str
    bundle: Path
    source: str | None = None

    @property
    def is_made(self) -> bool:
        """There is a bundle, one that this edgedec reads."""
        if self.source is None:
            return True
        try:
            read_manifest(self.bundle, are_hashes_checked=False)
        except BundleError:
            return False
        return True


@contextmanager
def silently(text: str, bundle: Path) -> Iterator[OnProgress]:
    """Announces nothing."""
    yield lambda phase, done, total: None


def is_bundle(path: Path) -> bool:
    """Returns whether there is a bundle at ``path``, broken or not."""
    return (path / MANIFEST_NAME).is_file()


def bundle_of(
    model: str | Path, announce: Announce = silently, library: Library | None = None
) -> Path:
    """Returns the bundle that ``model`` is or names. It is made now if there is none.

    Args:
        model: A bundle, a GGUF file, a Hugging Face directory, a name of the catalogue, or a hub
            model that was pulled.

    Raises:
        ConfigError: Nothing is called so.
        CheckpointError: The model's files are gone, or cannot be read.
    """
    meant = what_is_meant(model, library)
    if not meant.is_made:
        _make(meant, announce)
    return meant.bundle


def what_is_meant(model: str | Path, library: Library | None = None) -> Meant:
    """Returns what ``model`` means; arguments and errors as of `bundle_of`."""
    path, text = Path(model), str(model)
    library = library or user_library()
    if path.exists():
        return _of_path(path, library)
    name = text.removesuffix(os.sep).replace(os.sep, "/")  # Windows' paths write org\\name
    if (source := library.source(name)) is not None:
        return Meant(text, library.bundle(name), source)
    if path.suffix == ".edgedec" or path.is_absolute() or len(path.parts) > 2:
        return Meant(text, path)  # a path: whoever opens the bundle says that it is missing
    raise ConfigError(_unknown(name, library))


def _of_path(path: Path, library: Library) -> Meant:
    is_folder = path.is_dir()
    is_checkpoint = not is_bundle(path) and (path / "config.json").is_file()
    if not (is_checkpoint if is_folder else _is_gguf(path)):
        return Meant(str(path), path)
    return Meant(str(path), library.bundle(_cached_name(path.resolve())), str(path))


def _is_gguf(path: Path) -> bool:
    if path.suffix.lower() == ".gguf":
        return True
    with path.open("rb") as file:
        return file.read(len(_GGUF)) == _GGUF


def _cached_name(path: Path) -> str:
    """Returns the name of the bundle of a file or folder, another one once its files change."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [(file.name, file.stat()) for file in files if file.is_file()]
    state = [(name, status.st_size, status.st_mtime_ns) for name, status in stats]
    return f"{_cached_prefix(path)}{_digest(repr(state))}"


def _cached_prefix(path: Path) -> str:
    stem = path.name if path.is_dir() else path.stem
    return f"{stem[:80]}-{_digest(str(path))}-"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def _make(meant: Meant, announce: Announce) -> None:
    """Exports a model, once: another process that wants it too waits, and finds it made."""
    from edgedec.export import pipeline
    from edgedec.export.config import ExportConfig

    assert meant.source is not None
    bundle = meant.bundle
    with _alone(bundle):
        if meant.is_made:
            return
        shutil.rmtree(bundle, ignore_errors=True)  # broken, or of another version of edgedec
        with announce(meant.text, bundle) as report:
            done = pipeline.export(ExportConfig(meant.source, bundle), report)
        for line in done.notes:
            _log.info("%s", line)
        for warning in done.warnings:
            _log.warning("%s", warning)
        _remove_outdated(Path(meant.source), bundle)


@contextmanager
def _alone(bundle: Path) -> Iterator[None]:
    try:
        bundle.parent.mkdir(parents=True, exist_ok=True)
        file = (bundle.parent / f".{bundle.name}.lock").open("wb")
    except OSError as error:
        raise ConfigError(
            f"cannot keep bundles in {bundle.parent}: {error.strerror}; write one elsewhere with "
            "`edgedec export MODEL -o PATH` and run that"
        ) from None
    with file:
        lock_file(file.fileno())
        yield


def _remove_outdated(source: Path, bundle: Path) -> None:
    """Removes bundles of earlier contents of a file or folder."""
    if not source.exists():
        return
    prefix = Library.slug(_cached_prefix(source.resolve()))
    for other in bundle.parent.iterdir():
        if other != bundle and other.name.startswith(prefix) and other.suffix == bundle.suffix:
            shutil.rmtree(other, ignore_errors=True)


def _unknown(name: str, library: Library) -> str:
    """Returns what to say of a name that nothing has."""
    if Path(name).suffix.lower() == ".gguf":
        return f"there is no file {name}: check the path"
    known = [*CATALOGUE, *(pulled.name for pulled in library.pulled())]
    if HubName.parse(name) is not None:
        return f"{name} is not on this machine: run edgedec models pull {name}"
    near = _near(name.lower(), known)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return (
        f"there is no bundle, model file or model called {name!r}: {meant}"
        "edgedec models list shows the names, edgedec models pull ORG/NAME fetches others"
    )


def _near(name: str, known: list[str]) -> list[str]:
    """Returns the three names most like ``name``, or whose beginnings are, the likeliest first."""

    def likeness(other: str) -> float:
        beginnings = (other[: len(name) + more] for more in (-1, 0, 1))
        return max(
            difflib.SequenceMatcher(None, name, part).ratio() for part in (other, *beginnings)
        )

    alike = sorted((other for other in known if likeness(other) > 0.75), key=likeness, reverse=True)
    return alike[:3]
