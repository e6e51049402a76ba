"""Text files, from bytes to bytes: what nobody edits is saved as it was."""

from __future__ import annotations

import codecs
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QIODevice, QSaveFile

from edgedec.models.errors import EdgedecError

MAX_BYTES = 16 * 1024 * 1024
"""Larger files are refused: the text field lays out every line of a document."""

LONGEST_LINE = 200_000
"""Characters; a key in a longer line would take longer than an eye forgives."""

LINE_END = re.compile("\r\n|[\n\r\u2029\ufdd0\ufdd1]")
"""What the text field takes for the end of a line."""


class DocumentError(EdgedecError):
    """A file cannot be opened or saved; it and the text in the window are as they were."""


@dataclass(frozen=True)
class Stamp:
    """Tells a file from another that took its place, or was written into it."""

    inode: int
    mtime_ns: int
    n_bytes: int

    @classmethod
    def of(cls, path: Path) -> Stamp | None:
        """Returns the stamp of what is at ``path``; None where there is nothing."""
        try:
            status = path.stat()
        except OSError:
            return None
        return cls(status.st_ino, status.st_mtime_ns, status.st_size)


@dataclass(frozen=True)
class TextFile:
    """What a file says. text: with its own line ends. stamp: when it was read."""

    text: str
    has_bom: bool = False
    stamp: Stamp | None = None

    @property
    def usual_end(self) -> str:
        """The line end that most lines have."""
        ends = Counter(LINE_END.findall(self.text)).most_common(1)
        return ends[0][0] if ends else os.linesep

    @property
    def data(self) -> bytes:
        """The bytes of the file."""
        return codecs.BOM_UTF8 * self.has_bom + self.text.encode()


def read_text_file(path: Path) -> TextFile:
    """Returns what a file says; of one that does not exist, nothing.

    Raises:
        DocumentError: It cannot be read, is not UTF-8, too large, or has too long a line.
    """
    stamp = Stamp.of(path)
    try:
        if path.exists() and not path.is_file():
            raise DocumentError(f"{path} is not a file: open a text file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        if path.parent.is_dir():
            return TextFile("")
        raise DocumentError(f"{path.parent} does not exist: make that folder first") from None
    except OSError as error:
        raise DocumentError(f"cannot open {path}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        n_bytes = stamp.n_bytes if stamp else len(data)
        raise DocumentError(
            f"{path} has {n_bytes / 1e6:.0f} MB, expected at most {MAX_BYTES / 1e6:.0f} MB: "
            "open a part of it"
        )
    return TextFile(_decoded(path, data), data.startswith(codecs.BOM_UTF8), stamp)


def write_data(path: Path, data: bytes) -> Stamp | None:
    """Puts ``data`` in the place of a file, when all of it is on the disk; returns its stamp.

    Permissions stay; a link goes on to lead where it leads.

    Raises:
        DocumentError: That cannot be done; what was there is untouched.
    """
    file = QSaveFile(str(path))
    is_done = (
        file.open(QIODevice.OpenModeFlag.WriteOnly)
        and file.write(data) == len(data)
        and file.commit()
    )
    if not is_done:
        raise DocumentError(
            f"cannot save {path}: {file.errorString()}; the file is as it was and the text is "
            "still here: make room, or save it elsewhere"
        )
    return Stamp.of(path)


def _decoded(path: Path, data: bytes) -> str:
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"{path} is not UTF-8 (byte {error.start} is 0x{data[error.start]:02x}), expected a "
            "text file: convert it first, with iconv for instance"
        ) from None
    longest = max(map(len, LINE_END.split(text)))
    if longest > LONGEST_LINE:
        raise DocumentError(
            f"{path} has a line of {longest} characters, expected at most {LONGEST_LINE}: "
            "break it first"
        )
    return text
