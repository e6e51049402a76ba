"""What a file is that somebody took for a model."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from edgedec.models.file_kinds import file_kind


def zipped() -> bytes:
    """Returns an archive."""
    with zipfile.ZipFile(data := io.BytesIO(), "w") as archive:
        archive.writestr("data.pkl", "x")
    return data.getvalue()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"%PDF-1.7\n...", "a PDF document"),
        (zipped(), "a ZIP archive"),
        (gzip.compress(b"x"), "a gzip archive"),
        (pickle.dumps([1], protocol=2), "a Python pickle"),
        (safetensors.numpy.save({"a": np.zeros(3)}), "a safetensors file"),
        (b"  <!DOCTYPE html><title>404</title>", "a web page (HTML)"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "a pointer of Git LFS"),
        (b"", "an empty file"),
        (bytes(100), "a file of zeros"),
        (json.dumps({"a": "\u00fc"}).encode(), "a text file"),
        (("x" * 511 + "\u65e5\u672c").encode(), "a text file"),
        (bytes(range(128, 256)) * 4, "a file"),
    ],
)
def test_kinds(content: bytes, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(content)
    assert file_kind(path).startswith(kind)


def test_a_folder_and_nothing(tmp_path: Path) -> None:
    assert file_kind(tmp_path) == file_kind(tmp_path / "none") == "a file"
