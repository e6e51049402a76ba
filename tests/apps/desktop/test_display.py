"""Libraries of the system that are missing are named, with the packages that have them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("PySide6")

from edgedec.apps.desktop.command import _what_is_missing
from edgedec.apps.desktop.display import libraries_remedy, missing_libraries

LDD = """#!/bin/sh
echo "	linux-vdso.so.1 (0x00007ffc)"
echo "	libxcb-cursor.so.0 => not found"
echo "	libxcb-icccm.so.4 => not found"
echo "	libQt6Gui.so.6 => /qt/libQt6Gui.so.6 (0x00007f)"
"""


def test_libraries_that_the_loader_misses_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ldd").write_text(LDD)
    (tmp_path / "ldd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("QT_QPA_PLATFORM", raising=False)
    assert missing_libraries() == ["libxcb-cursor.so.0", "libxcb-icccm.so.4"]
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")  # which needs none of them
    (tmp_path / "ldd").write_text("#!/bin/sh\n")
    assert missing_libraries() == []
    monkeypatch.setenv("QT_QPA_PLATFORM", "xcb")
    monkeypatch.setenv("PATH", "")
    assert missing_libraries() == []


def test_the_remedy_names_packages() -> None:
    assert libraries_remedy(["libxcb-cursor.so.0", "libGL.so.1", "libodd.so.9"]) == (
        "libraries of the system that are missing: libxcb-cursor.so.0, libGL.so.1, libodd.so.9; "
        "on Debian and Ubuntu: sudo apt install libgl1 libxcb-cursor0"
    )
    error = ImportError("libEGL.so.1: cannot open shared object file: No such file or directory")
    assert _what_is_missing(error).endswith("sudo apt install libegl1")
    assert _what_is_missing(ImportError("gone", name="shiboken6")).startswith("PySide6: ")
    assert _what_is_missing(ImportError("gone", name="pygments.lexer")).startswith("pygments: ")
