"""Publishers' configurations against transformers: a few of `tools/fuzz/generation_configs.py`."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FUZZ = Path(__file__).parents[2] / "tools/fuzz"

pytestmark = [pytest.mark.parity, pytest.mark.slow]


@pytest.fixture(scope="module")
def tool() -> Iterator[Any]:
    pytest.importorskip("transformers", reason="needs the dev extra")
    sys.path.insert(0, str(FUZZ))
    import generation_configs

    yield generation_configs
    sys.path.remove(str(FUZZ))


@pytest.mark.filterwarnings("ignore")
def test_configurations_drawn_at_random(tool: Any) -> None:
    outcomes = {tool.try_once(random.Random(seed)) for seed in range(1000, 1030)}
    assert "equal" in outcomes
    assert any("sequence_bias" in outcome for outcome in outcomes)
