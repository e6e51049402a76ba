"""What a text says is the same however it is cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.apps.serve.core import Answer, CallDelta, Choice, Event
from edgedec.apps.serve.parsing import OutputParser

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "}\\"</tool_call>", "b": [{}]}}\n</tool_call>'
TEXTS = {
    "plain": "Just text, 1 < 2.",
    "call": f"Let me see.{CALL}",
    "calls": f"{CALL}\n{CALL}",
    "cut": '<tool_call>\n{"name": "f", "arguments": {"a": [1, ',
    "half": "text <tool_ca",
    "fenced": 'Look:\n```json\n{\n  "name": "f",\n  "arguments": {\n "a": "```"}\n}\n```\n',
    "fences": '```\n{"name": "f", "arguments": {}}\n```\n```json{"name":"f","arguments":{}}```',
    "fenced cut": '```json\n{"name": "f", "arguments": {"a": [1, ',
    "bare": '{"name": "f", "parameters": {"a": {}}}',
    "code": 'So:\n```json\n{"name": "g", "arguments": {"a": 1}}\n```\nand ``f``',
    "object": '{"name": "f", "other": {"a": 1}} is {"name": "f", "arguments": {}}',
    "fence": "```json\n{",
    "python": "```python\nf({'name': 1})\n```",
}


def parsed(pieces: list[str], tools: Sequence[str] = ("f",)) -> Choice:
    parser = OutputParser(0, tools)
    events: list[Event] = [event for piece in pieces for event in parser.push(piece, [])]
    events += parser.flush()
    return Answer.of(events, 1).choices[0]


def reported(choice: Choice) -> tuple[str, str, list[tuple[str, str]]]:
    return choice.text, choice.reasoning, [(c.name, c.arguments) for c in choice.calls]


def test_each_part_is_where_it_belongs() -> None:
    arguments = '{"a": "}\\"</tool_call>", "b": [{}]}'
    wanted = {
        "plain": (TEXTS["plain"], "", []),
        "call": ("Let me see.", "", [("f", arguments)]),
        "calls": ("", "", [("f", arguments)] * 2),
        "cut": ("", "", [("f", '{"a": [1, ')]),
        "half": ("text <tool_ca", "", []),
        "fenced": ("Look:\n", "", [("f", '{\n "a": "```"}')]),
        "fences": ("", "", [("f", "{}")] * 2),
        "fenced cut": ("", "", [("f", '{"a": [1, ')]),
        "bare": ("", "", [("f", '{"a": {}}')]),
        **{name: (TEXTS[name], "", []) for name in ("code", "object", "fence", "python")},
    }
    assert {name: reported(parsed([text])) for name, text in TEXTS.items()} == wanted


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@given(st.data())
def test_cuts_do_not_matter(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1))))
    pieces = [text[i:j] for i, j in pairwise([0, *cuts, len(text)])]
    assert reported(parsed(pieces)) == reported(parsed([text]))


def test_without_tools_a_call_is_text() -> None:
    assert parsed([CALL], ()).text == CALL


def test_calls_have_ids_of_their_own() -> None:
    parser = OutputParser(0, ("f",))
    events = [*parser.push(TEXTS["calls"], []), *parser.flush()]
    ids = [event.id for event in events if isinstance(event, CallDelta) and event.id]
    assert len(set(ids)) == 2
