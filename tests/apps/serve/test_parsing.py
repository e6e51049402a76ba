"""What a text says is the same however it is cut."""

from __future__ import annotations

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
}


def parsed(pieces: list[str], has_calls: bool = True) -> Choice:
    parser = OutputParser(0, has_calls)
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
    }
    assert {name: reported(parsed([text])) for name, text in TEXTS.items()} == wanted


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@given(st.data())
def test_cuts_do_not_matter(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1))))
    pieces = [text[i:j] for i, j in pairwise([0, *cuts, len(text)])]
    assert reported(parsed(pieces)) == reported(parsed([text]))


def test_without_tools_a_call_is_text() -> None:
    assert parsed([CALL], has_calls=False).text == CALL


def test_calls_have_ids_of_their_own() -> None:
    parser = OutputParser(0, True)
    events = [*parser.push(TEXTS["calls"], []), *parser.flush()]
    ids = [event.id for event in events if isinstance(event, CallDelta) and event.id]
    assert len(set(ids)) == 2
