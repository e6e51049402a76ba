"""Every way of decoding writes what it wrote before, token for token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import golden_tokens
import pytest
from golden_tokens import Case, cases

import edgedec

pytestmark = [pytest.mark.parity, pytest.mark.e2e]

GOLDEN = json.loads((Path(__file__).parent / "golden_tokens.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def engine(smollm2_bundle: Path) -> Iterator[edgedec.Engine]:
    with golden_tokens.open_engine(smollm2_bundle) as engine:
        yield engine


@pytest.mark.parametrize("case", tuple(cases()), ids=str)
def test_tokens_are_those_recorded(engine: edgedec.Engine, case: Case) -> None:
    assert case.outputs(engine) == GOLDEN[case.key]
