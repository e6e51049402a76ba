"""What of a terminal the page of the first hour has."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "record_first_hour.py"


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("record_first_hour", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ("$ make run\nHello $\n$ \n", "$ make run\nHello $\n"),
        ("(.venv) $ echo x >> ~/init.lua(.venv) $ ", "(.venv) $ echo x >> ~/init.lua"),
        ("> Name three rivers.\n1. The\n>  \n", "> Name three rivers.\n1. The"),
        ("Collecting a\n  WARNING: Retrying\n⠼ load ━━━\ndone\n$", "done"),
        ("exporting to /home/x/.cache\n$", "exporting to ~/.cache"),
    ],
)
def test_the_waiting_prompt_and_progress_are_left_out(
    tool: Any, history: str, expected: str
) -> None:
    assert tool.shown(history, Path("/home/x")).rstrip() == expected.rstrip()
