"""The files at a place that keep texts, told from others by their names and first bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from edgedec.apps.kept_texts.places import Place
from edgedec.models.errors import ConfigError

_SESSION, _STORE, _REPLAY = (0, b"edgedkv\n"), (0, b"edngrams"), (68, b"edrb")
_NAMES = {
    "prefixes": ("*.kv", ".*.kv.*"),
    "sessions": ("*.session", ".*.session.*"),
    "learned": ("offers.json", "*.ngrams", ".offers.json.*", ".*.ngrams.*"),
    "replays": ("texts.json", "*.bin", "*.npz", ".texts.json.*", ".*.npz.*"),
}
"""Kind -> names of files in a folder of it, and of what killed writers left of them."""

_SIGNS = {"sessions": _SESSION, "stores": _STORE, "replays": _REPLAY}
"""Kind -> where in a file what bytes are; a history is plain text."""


@dataclass(frozen=True)
class KeptFiles:
    """The files of one place. changed_s: when the newest was written. Units: seconds since 1970."""

    place: Place
    files: tuple[Path, ...]
    n_bytes: int
    changed_s: float


def find_files(place: Place) -> KeptFiles | None:
    """Returns what is kept at ``place``; None if there is nothing."""
    stats = []
    for path in _paths(place):
        with suppress(OSError):  # another program may remove it
            stats.append((path, path.lstat()))
    if not stats:
        return None
    return KeptFiles(
        place,
        tuple(path for path, _ in stats),
        sum(status.st_size for _, status in stats),
        max(status.st_mtime for _, status in stats),
    )


def remove(kept: KeptFiles) -> None:
    """Removes the files.

    Raises:
        ConfigError: One of them cannot be removed.
    """
    for path in kept.files:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot remove {path}: {error.strerror}") from None


def _paths(place: Place) -> Iterator[Path]:
    if place.path.is_file() and not place.path.is_symlink():
        if _is_of(place.kind, place.path):
            yield place.path
        return
    with suppress(OSError):
        for path in sorted(place.path.iterdir()):
            names = _NAMES.get(place.kind, ())
            if path.is_file() and any(fnmatch(path.name, name) for name in names):
                yield path


def _is_of(kind: str, path: Path) -> bool:
    """Says whether a named file is still what was put there: a user may have replaced it."""
    if kind == "histories":
        return True
    if kind not in _SIGNS:
        return False
    at, sign = _SIGNS[kind]
    try:
        with path.open("rb") as file:
            file.seek(at)
            return file.read(len(sign)) == sign
    except OSError:
        return False
