"""A bundle appears whole or not at all, whatever happens to the process that writes it.

Files are written into a hidden folder beside the destination, `.NAME.partial-XXXX`, which holds
an exclusive lock for as long as its writer lives. The last step renames the folder. A folder
whose lock is free belongs to a killed export and is removed by the next one into the same folder.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgedec.models.bundle_files import FileEntry, check_place, file_sha256
from edgedec.models.errors import BundleError
from edgedec.models.manifest import MANIFEST_NAME, BundleManifest
from edgedec.system.files import exchange, is_open_elsewhere, sync
from edgedec.system.locks import lock_folder

_PARTIAL = re.compile(r"\..+\.partial-[0-9a-f]{8}(-old)?", re.DOTALL)
_MAX_NAME = 200  # bytes: file systems take 255, and unfinished bundles have longer names
_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def bundle_folder(destination: Path, is_overwrite_allowed: bool = False) -> Iterator[Path]:
    """Yields a folder to fill; renames it to ``destination`` at a clean exit, else removes it.

    Raises:
        BundleError: The destination exists and may not be replaced, is no bundle, or cannot be
            written (full disk, no permission).
    """
    _check_name(destination)
    destination = destination.absolute()
    if destination.is_symlink():
        destination = destination.resolve()
    check_destination(destination, is_overwrite_allowed)
    with writing_to(destination), _parents_of(destination):
        remove_leftovers(destination)
        folder, lock = _make_partial(destination)
        try:
            yield folder
            _sync_tree(folder)
            _publish(folder, destination, is_overwrite_allowed)
        finally:
            # After a replacement the folder holds the old bundle.
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def check_destination(destination: Path, is_overwrite_allowed: bool) -> None:
    """Raises a BundleError unless a bundle may be written to ``destination``."""
    if destination.name in ("", ".."):
        raise BundleError(f"cannot write a bundle to {destination}: name a new directory")
    _check_name(destination)
    if not destination.exists():
        return
    if not is_overwrite_allowed:
        raise BundleError(
            f"{destination} exists already: choose another path with -o, or replace it with --force"
        )
    if not _is_bundle(destination):
        raise BundleError(
            f"{destination} exists and is not an edgedec bundle, so --force does not replace it: "
            "choose another path with -o"
        )


def _check_name(destination: Path) -> None:
    check_place(destination.absolute())
    n_bytes = len(os.fsencode(destination.name))
    if n_bytes > _MAX_NAME:
        raise BundleError(
            f"the name of the bundle has {n_bytes} bytes, expected at most {_MAX_NAME}: choose a "
            "shorter one with -o"
        )


def remove_leftovers(destination: Path) -> None:
    """Removes the unfinished folders that killed exports left behind beside ``destination``."""
    for folder in destination.parent.glob(".*.partial-*"):
        if not _PARTIAL.fullmatch(folder.name) or folder.is_symlink():
            continue
        with suppress(OSError):
            lock = lock_folder(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def write_manifest(folder: Path, manifest: BundleManifest) -> None:
    """Writes ``manifest.json``, the last file of a bundle.

    Raises:
        BundleError: It states what nobody would read.
    """
    BundleManifest.from_dict(manifest.to_dict())
    text = json.dumps(manifest.to_dict(), indent=2, allow_nan=False)
    (folder / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8", newline="\n")


def hash_files(folder: Path, on_bytes: Callable[[int], None] | None = None) -> dict[str, FileEntry]:
    """Returns an entry for every file below ``folder``, by relative POSIX path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): FileEntry(
            path.stat().st_size, file_sha256(path, on_bytes)
        )
        for path in paths
        if path.name != MANIFEST_NAME
    }


@contextmanager
def writing_to(destination: Path) -> Iterator[None]:
    """Turns errors of the file system into one line."""
    try:
        yield
    except OSError as error:
        if error.errno in _OUT_OF_SPACE:
            raise BundleError(
                f"no space left for {destination}: nothing was written, free some space or "
                "choose another path with -o"
            ) from error
        reason = error.strerror or str(error)
        place = error.filename or destination
        if is_open_elsewhere(error) and destination.exists():
            raise BundleError(
                f"cannot replace {destination}: a program has it open; close that, or choose "
                "another path with -o"
            ) from error
        raise BundleError(f"cannot write {place}: {reason}; no bundle was written") from error


@contextmanager
def _parents_of(destination: Path) -> Iterator[None]:
    """Makes the folders above ``destination``; removes the new ones again after an error."""
    missing = [folder for folder in destination.parents if not folder.exists()]
    destination.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for folder in missing:  # deepest first
                folder.rmdir()
        raise


def _is_bundle(folder: Path) -> bool:
    """Whether ``folder`` is ours to replace: it holds an edgedec manifest, or nothing."""
    if not folder.is_dir():
        return False
    try:
        if not any(folder.iterdir()):
            return True
        fields = json.loads((folder / MANIFEST_NAME).read_bytes())
        return isinstance(fields, dict) and "edgedec_version" in fields
    except (OSError, ValueError, RecursionError):
        return False


def _make_partial(destination: Path) -> tuple[Path, int]:
    """Returns a new locked folder beside ``destination`` and the descriptor of its lock."""
    while True:
        name = f".{destination.name}.partial-{secrets.token_hex(4)}"
        folder = destination.parent / name
        folder.mkdir()
        with suppress(FileNotFoundError):
            # Another export may take the new folder for a leftover before it is locked.
            lock = lock_folder(folder)
            if lock is not None:
                if folder.exists():
                    return folder, lock
                os.close(lock)


def _sync_tree(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        sync(path)


def _publish(folder: Path, destination: Path, is_overwrite_allowed: bool) -> None:
    """Renames ``folder`` to ``destination``; an old bundle ends up at ``folder``."""
    check_destination(destination, is_overwrite_allowed)  # it may have appeared meanwhile
    if not destination.exists():
        folder.rename(destination)
    elif not exchange(folder, destination):
        # No atomic exchange here: for a moment neither bundle is at the destination.
        old = folder.with_name(f"{folder.name}-old")
        destination.rename(old)
        try:
            folder.rename(destination)
        except OSError:
            old.rename(destination)
            raise
        shutil.rmtree(old, ignore_errors=True)
    sync(destination.parent)
