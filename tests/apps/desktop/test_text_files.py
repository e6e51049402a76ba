"""Bytes to a text field and back: whatever they are, they are kept or refused."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from PySide6.QtGui import QTextCursor  # isort: skip
from PySide6.QtWidgets import QApplication, QPlainTextEdit

from edgedec.apps.desktop.line_ends import put_text, text_of
from edgedec.apps.desktop.text_file import (
    LONGEST_LINE,
    MAX_BYTES,
    DocumentError,
    TextFile,
    read_text_file,
    write_data,
)

pytestmark = pytest.mark.slow

KEPT = {
    "unix": "a\nb\n",
    "windows": "a\r\nb\r\n",
    "old mac": "a\rb\r",
    "mixed": "a\r\nb\nc\rd\r\n\r\n\n\r\re",
    "no end": "a\nb",
    "ends only": "\n\r\n\r",
    "empty": "",
    "emoji": "\U0001f600 e\u0301 \u202eabc\n字\n",
    "odd spaces": "a\u00a0b\u2028c\u2029d\ufdd0e\ufdd1f\n",
    "control": "a\x00b\x0cc\x1bd\x85e\n",
    "objects": "\ufffc\ufffd\uffff\n",
}


@pytest.mark.parametrize("text", KEPT.values(), ids=list(KEPT))
def test_what_nobody_edits_stays(application: QApplication, text: str) -> None:
    edit = QPlainTextEdit()
    usual = TextFile(text).usual_end
    is_mixed = put_text(edit, text, usual)
    assert text_of(edit, usual, is_mixed) == text
    assert not edit.document().isModified()
    assert not edit.document().isUndoAvailable()


def test_ends_of_lines_stay_with_their_lines(application: QApplication) -> None:
    text, edit = "one\r\ntwo\nthree\nfour\r\n", QPlainTextEdit()
    is_mixed = put_text(edit, text, "\n")
    assert is_mixed
    edit.moveCursor(QTextCursor.MoveOperation.End)
    edit.insertPlainText("five\nsix")
    assert text_of(edit, "\n", is_mixed) == text + "five\nsix"
    edit.selectAll()
    edit.insertPlainText("")
    assert text_of(edit, "\n", is_mixed) == ""
    edit.undo()
    edit.undo()
    assert text_of(edit, "\n", is_mixed) == text
    edit.moveCursor(QTextCursor.MoveOperation.Start)
    edit.insertPlainText("zero\n")
    assert text_of(edit, "\n", is_mixed) == "zero\r\n" + text  # it parts a line of that kind


def test_new_lines_end_as_most_do(application: QApplication) -> None:
    edit = QPlainTextEdit()
    put_text(edit, "a\r\nb\r\n", TextFile("a\r\nb\r\n").usual_end)
    edit.moveCursor(QTextCursor.MoveOperation.End)
    edit.insertPlainText("c\n")
    assert text_of(edit, "\r\n", is_mixed=False) == "a\r\nb\r\nc\r\n"
    assert TextFile("").usual_end == os.linesep


def test_a_byte_order_mark_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfa\r\n")
    file = read_text_file(path)
    assert (file.text, file.has_bom) == ("a\r\n", True)
    assert file.data == path.read_bytes()


def refused(path: Path) -> str:
    with pytest.raises(DocumentError) as caught:
        read_text_file(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"abc\xff")
    assert "is not UTF-8 (byte 3 is 0xff)" in refused(path)
    path.write_bytes("a".encode("utf-16"))
    assert "is not UTF-8" in refused(path)
    with path.open("wb") as file:
        file.truncate(50_000_000)
    assert f"has 50 MB, expected at most {MAX_BYTES / 1e6:.0f} MB" in refused(path)
    path.write_text("x" * (LONGEST_LINE + 1))
    assert f"has a line of {LONGEST_LINE + 1} characters" in refused(path)
    assert "is not a file" in refused(tmp_path)
    assert "does not exist" in refused(tmp_path / "none" / "a.txt")
    assert read_text_file(tmp_path / "new.txt") == TextFile("")
    os.mkfifo(tmp_path / "pipe")
    assert "is not a file" in refused(tmp_path / "pipe")


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may grow beyond a few bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"before")
    with full_disk(), pytest.raises(DocumentError, match="still here"):
        write_data(path, b"x" * 100_000)
    assert path.read_bytes() == b"before"
    assert [one.name for one in tmp_path.iterdir()] == ["a.txt"]


def test_saving_keeps_permissions_and_links(tmp_path: Path) -> None:
    path, link = tmp_path / "a.txt", tmp_path / "b.txt"
    path.write_bytes(b"before")
    path.chmod(0o640)
    link.symlink_to(path)
    write_data(link, b"after")
    assert path.read_bytes() == b"after"
    assert path.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()


def test_a_folder_that_is_gone_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="cannot save"):
        write_data(tmp_path / "none" / "a.txt", b"x")
