"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from edgedec.system.files import how_to_convert, read_text, replace_text, replacing


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o640)
    with replacing(path, is_durable=True) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == ["file"]


def test_what_is_private_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_text(path, "a", is_private=True)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    replace_text(path, "b", is_private=True)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_a_writer_that_fails_leaves_the_old_file(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)):
        write()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        replace_text(tmp_path / "missing" / "file", "new")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_text(tmp_path / "folder", "new")
    assert names(tmp_path) == ["folder"]


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    left, fresh, other = (tmp_path / name for name in (".a.1.part", ".a.2.part", ".b.1.part"))
    for path in (left, fresh, other):
        path.touch()
    long_ago = time.time() - 7200
    os.utime(left, (long_ago, long_ago))
    os.utime(other, (long_ago, long_ago))
    replace_text(tmp_path / "a", "text")
    assert names(tmp_path) == [".a.2.part", ".b.1.part", "a"]


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("encoding", "named"), [("utf-16", "UTF-16"), ("utf-32", "UTF-32"), ("latin-1", "LATIN1")]
)
def test_texts_in_other_encodings_say_how_to_convert(
    tmp_path: Path, encoding: str, named: str
) -> None:
    """PowerShell writes UTF-16 where it redirects."""
    (tmp_path / "a.txt").write_bytes("caf\u00e9 \u00fc".encode(encoding))
    with pytest.raises(UnicodeDecodeError) as caught:
        read_text(tmp_path / "a.txt")
    assert how_to_convert(caught.value).endswith(f"convert it: iconv -f {named} -t UTF-8")
