"""Chat templates as transformers renders them: some of `tools/fuzz/chat_templates.py`."""

from __future__ import annotations

import importlib
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FUZZ = Path(__file__).parents[2] / "tools/fuzz"
LOOP = "{{% for m in messages %}}{}{{% endfor %}}"
NULLS = {"tool_calls": None, "name": None, "function_call": None}
PARTS = LOOP.format("{{ m.content[0].text }}")
CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": "</s>"}}}

pytestmark = pytest.mark.parity


@pytest.fixture(scope="module")
def tool() -> Iterator[Any]:
    pytest.importorskip("transformers", reason="needs the dev extra")
    sys.path.insert(0, str(FUZZ))
    yield importlib.import_module("chat_templates")
    sys.path.remove(str(FUZZ))


@pytest.mark.slow
def test_templates_drawn_at_random(tool: Any) -> None:
    outcomes = Counter(tool.compared(*tool.drawn(random.Random(seed), ())) for seed in range(60))
    known = ("equal", "both refuse", "refused: ", "rendered here: ")
    assert [outcome for outcome in outcomes if not outcome.startswith(known)] == []
    assert outcomes["equal"] > 10


@pytest.mark.parametrize(
    ("source", "message", "outcome"),
    [
        (LOOP.format("{{ m.content }}"), {"role": "user", "content": "a"}, "equal"),
        (PARTS, {"role": "user", "content": "a"}, "equal, but text"),
        (PARTS, {"role": "user", "content": [{"type": "text", "text": "a"}]}, "equal"),
        (PARTS, {"role": "user", "content": "</s>a"}, "equal, but text"),
        (
            LOOP.format("{{ m.tool_calls }}"),
            {"role": "assistant", "tool_calls": [CALL]},
            "equal, but arguments",
        ),
        (LOOP.format("{{ m }}"), {"role": "user", "content": "</s>"}, "equal"),
        (
            LOOP.format("{{ m.content | tojson(ensure_ascii=true) | upper }}"),
            {"role": "user", "content": "</s> \U0001f600"},
            "equal",
        ),
    ],
)
def test_what_a_template_is_given(
    tool: Any, source: str, message: dict[str, Any], outcome: str
) -> None:
    assert tool.compared(source, [message], {"tools": []}) == outcome


def test_nulls_of_clients_are_no_values(tool: Any) -> None:
    """OpenAI's client dumps them; transformers leaves them out since 5.24."""
    source = LOOP.format(
        "{{ m.content }}{% if 'tool_calls' in m %}{{ m.tool_calls | length }}{% endif %}"
        "{{ m.name | default('-') }}{% if m.function_call is defined %}C{% endif %}"
    )
    with_nulls = {"role": "assistant", "content": "a", **NULLS}
    expected = tool.theirs(source, [{"role": "assistant", "content": "a"}], {"tools": []})
    assert tool.ours(source, [with_nulls], {"tools": []}) == expected == "a-"
