"""Tokenizers as transformers reads them; `tools/fuzz/tokenizer_settings.py` draws more of them."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the dev extra")

FUZZ = Path(__file__).parents[2] / "tools/fuzz"


@pytest.fixture(scope="module")
def fuzz() -> Iterator[Any]:
    """The module of the fuzzing tool."""
    sys.path.insert(0, str(FUZZ))
    yield importlib.import_module("tokenizer_settings")
    sys.path.remove(str(FUZZ))


@pytest.mark.slow
def test_drawn_settings_are_read_as_by_transformers(fuzz: Any) -> None:
    outcomes = fuzz.compared(range(100))
    assert [one for one in outcomes if one.kind.startswith(("differs", "refused"))] == []
    kinds = Counter(one.kind for one in outcomes)
    assert kinds["equal"] > 35
    assert kinds["equal"] + kinds["skipped: needs transformers 5"] > 95
