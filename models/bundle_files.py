"""The files a bundle lists: each inside its folder, of the stated size, with the stated hash."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgedec.models.errors import BundleError

SMALL_FILE_BYTES = 32 << 20
"""Files up to this size are hash-checked at every load; larger ones by `damaged_files` only."""


@dataclass(frozen=True)
class FileEntry:
    """Size and SHA-256 (lower-case hex) of one file of the bundle."""

    n_bytes: int
    sha256: str


def damaged_files(
    folder: Path,
    files: Mapping[str, FileEntry],
    on_progress: Callable[[str, int], None] | None = None,
) -> list[str]:
    """Returns the listed files whose content differs from the stated hash.

    on_progress: called with a path and the number of its bytes just read.
    """
    damaged = []
    for path, entry in files.items():
        report = None if on_progress is None else lambda n, p=path: on_progress(p, n)
        try:
            check_file(folder, path, entry)
            if file_sha256(folder / path, report) != entry.sha256:
                damaged.append(path)
        except BundleError:
            damaged.append(path)
    return damaged


def file_sha256(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Returns the SHA-256 of a file in lower-case hex.

    Raises:
        BundleError: The file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while piece := file.read(4 << 20):
                digest.update(piece)
                if on_bytes is not None:
                    on_bytes(len(piece))
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}") from None
    return digest.hexdigest()


def check_place(folder: Path) -> None:
    """Raises a BundleError where no bundle can be: libraries that read graphs open UTF-8 only."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise BundleError(
            f"the path {folder} is not UTF-8, expected a bundle's to be: give it another name"
        ) from None


def check_file(folder: Path, path: str, entry: FileEntry) -> None:
    """Raises a BundleError unless ``path`` is a regular file in ``folder`` of the stated size."""
    check_inside(folder, path)
    try:
        status = (folder / path).stat()
    except FileNotFoundError:
        raise BundleError(
            f"{path} is missing from {folder}: copy the bundle again or export the model again"
        ) from None
    except (OSError, ValueError) as error:
        raise BundleError(f"cannot read {path} of {folder}: {error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise BundleError(f"{path} of {folder} is not a regular file")
    if status.st_size != entry.n_bytes:
        raise BundleError(
            f"{path} of {folder} is {status.st_size} bytes, the manifest states {entry.n_bytes}: "
            "copy the bundle again or export the model again"
        )


def check_inside(folder: Path, path: str) -> None:
    """Raises a BundleError if symbolic links lead ``path`` out of ``folder``."""
    try:
        resolved = (folder / path).resolve()
        is_inside = resolved.is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError) as error:
        raise BundleError(f"cannot resolve {path} of {folder}: {error}") from None
    if not is_inside:
        raise BundleError(
            f"{path} of {folder} is a link to {resolved}, expected a file inside the bundle"
        )


def check_hash(folder: Path, path: str, entry: FileEntry) -> None:
    """Raises a BundleError unless ``path`` of ``folder`` has the stated hash."""
    got = file_sha256(folder / path)
    if got != entry.sha256:
        raise BundleError(
            f"{path} of {folder} is damaged (SHA-256 {got[:12]}..., the manifest states "
            f"{entry.sha256[:12]}...): copy the bundle again or export the model again"
        )
