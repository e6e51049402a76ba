"""A prompt is the same text, whichever way it comes; a byte order mark is no part of it."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgedec.apps.options.prompt_text import read_prompt


@pytest.mark.parametrize("text", ["a\r\nb\r\n", "a\nb", "a\rb\n\n", "\ufeffa\r\n", " \t日本\r\n"])
def test_line_ends_stay(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(text.encode())
    expected = text.removeprefix("\ufeff")
    assert read_prompt(None, path) == expected
    piped = SimpleNamespace(buffer=io.BytesIO(text.encode()), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", piped)
    assert read_prompt("-", None) == expected
