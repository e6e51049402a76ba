"""What other systems do, tried on this one: files that are open elsewhere, and locks."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from edgedec.export.bundle import bundle_folder
from edgedec.models.errors import BundleError
from edgedec.system import files
from edgedec.system.locks import lock_folder


class InUseError(PermissionError):
    """As Windows raises it while a program has the file open."""

    winerror = 32


def refusing(n_times: int, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Has the first ``n_times`` replacements refused; returns where those to come are noted."""
    tried: list[Path] = []
    replace = Path.replace

    def try_to(self: Path, target: Path) -> Path:
        tried.append(self)
        if len(tried) <= n_times:
            raise InUseError(13, "Access is denied", str(self))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", try_to)
    return tried


def test_a_file_that_is_open_elsewhere_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("old")
    tried = refusing(3, monkeypatch)
    files.replace_text(tmp_path / "file", "new")
    assert len(tried) == 4
    assert (tmp_path / "file").read_text() == "new"


def test_one_that_stays_open_keeps_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("old")
    refusing(10**9, monkeypatch)
    monkeypatch.setattr(files, "_PATIENCE_S", 0.05)
    with pytest.raises(PermissionError):
        files.replace_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208


def test_other_errors_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waited"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        files.replace_text(tmp_path / "folder", "new")


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_bundle_that_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """A program has the old one open (first rename), or a scanner the new one (second)."""
    destination = tmp_path / "b"
    destination.mkdir()
    (destination / "manifest.json").write_text('{"edgedec_version": "0"}')
    monkeypatch.setattr("edgedec.export.bundle.exchange", lambda a, b: False)
    renamed: list[Path] = []
    rename = Path.rename

    def try_to(self: Path, target: Path) -> Path:
        renamed.append(self)
        if len(renamed) == fails_at:
            raise InUseError(13, "Access is denied", str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", try_to)
    with (
        pytest.raises(BundleError, match=r"cannot replace .*b: a program has it open; close"),
        bundle_folder(destination, is_overwrite_allowed=True) as folder,
    ):
        (folder / "file").write_text("new")
    assert os.listdir(tmp_path) == ["b"]  # noqa: PTH208
    assert os.listdir(destination) == ["manifest.json"]  # noqa: PTH208


def test_a_folder_is_locked_once(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    lock = lock_folder(folder)
    assert lock is not None
    assert lock_folder(folder) is None
    os.close(lock)
    again = lock_folder(folder)
    assert again is not None
    os.close(again)
    with pytest.raises(FileNotFoundError):
        lock_folder(tmp_path / "missing")
