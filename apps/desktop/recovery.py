"""Unsaved text on the disk, for when the editor ends without having asked what to do with it.

Each editor that runs has a folder of its own and a lock in it. A folder whose lock nobody holds was
left behind by one that ended badly.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs
from PySide6.QtCore import QLockFile

from edgedec.apps.desktop.text_file import Stamp
from edgedec.models.errors import ConfigError
from edgedec.models.fields import Fields
from edgedec.system.files import replace_text

_LOCK = "lock"


@dataclass(frozen=True)
class Draft:
    """Unsaved text of a document. path: of its file; empty where it has none yet.

    stamp: of the file as the text last knew it, so that later changes by others are seen.
    """

    title: str
    path: str
    text: str
    has_bom: bool
    cursor: int
    stamp: Stamp | None = None

    @classmethod
    def parse(cls, data: bytes) -> Draft | None:
        """Returns what `write` wrote; None where that is damaged."""
        try:
            read = Fields(json.loads(data), "a draft", ConfigError)
            return cls(
                read.text("title"),
                read.text("path"),
                read.text("text"),
                read.flag("has_bom"),
                read.integer("cursor", least=0),
                read.optional("stamp", lambda key: _stamp(read.table(key))),
            )
        except (ValueError, RecursionError, ConfigError):
            return None


class Recovery:
    """Keeps drafts; only their owner may read them. Writing is another thread's work."""

    def __init__(self, folder: Path | None = None) -> None:
        """Raises: OSError: There is no place for drafts."""
        self._folder = folder or Path(platformdirs.user_state_dir("edgedec")) / "desktop"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._drafts_folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=self._folder))
        self._lock = _locked(self._drafts_folder)
        self._left: list[tuple[Path, QLockFile]] = []
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="recovery")

    def keep(self, key: str, draft: Draft) -> None:
        """Writes a draft soon, in the place of the one before of the same ``key``."""
        self._writer.submit(_write, self._drafts_folder / f"{key}.json", draft)

    def drop(self, key: str) -> None:
        """Removes a draft: its text was saved, or is not wanted."""
        self._writer.submit((self._drafts_folder / f"{key}.json").unlink, missing_ok=True)

    def left_behind(self) -> list[Draft]:
        """Returns the drafts of editors that ended badly; they stay until `forget_left_behind`."""
        drafts = []
        for folder in sorted(self._folder.iterdir()):
            if folder != self._drafts_folder and (lock := _locked(folder)) is not None:
                self._left.append((folder, lock))
                drafts += list(_drafts(folder))
        return drafts

    def forget_left_behind(self) -> None:
        """Removes the drafts that `left_behind` found: they are kept otherwise by now."""
        self._writer.submit(_remove, self._left)
        self._left = []

    def close(self, is_kept: bool = False) -> None:
        """Waits for what is being written; removes all of it unless it ``is_kept``."""
        self._writer.shutdown()
        for _, lock in self._left:
            lock.unlock()
        if self._lock is not None:
            self._lock.unlock()
        if not is_kept:
            shutil.rmtree(self._drafts_folder, ignore_errors=True)


def new_key() -> str:
    """Returns a key for a document."""
    return secrets.token_hex(8)


def _stamp(read: Fields) -> Stamp:
    inode, mtime_ns, n_bytes = (
        read.integer(key, least=least, most=2**64)
        for key, least in (("inode", 0), ("mtime_ns", -(2**64)), ("n_bytes", 0))
    )
    return Stamp(inode, mtime_ns, n_bytes)


def _locked(folder: Path) -> QLockFile | None:
    if not folder.is_dir():
        return None
    lock = QLockFile(str(folder / _LOCK))
    lock.setStaleLockTime(0)  # a lock is stale when its process is gone, and never else
    return lock if lock.tryLock(0) else None


def _drafts(folder: Path) -> Iterator[Draft]:
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError):
            if (draft := Draft.parse(path.read_bytes())) is not None:
                yield draft


def _write(path: Path, draft: Draft) -> None:
    try:
        replace_text(path, json.dumps(asdict(draft)), is_private=True)
    except OSError as error:
        logging.getLogger(__name__).warning("cannot keep unsaved text: %s", error)


def _remove(left: list[tuple[Path, QLockFile]]) -> None:
    for folder, lock in left:
        lock.unlock()
        shutil.rmtree(folder, ignore_errors=True)
