"""Items of earlier answers that a client names by their ids, as the AI SDK does by default."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgedec.apps.serve.api.kept_items import KeptItems
from edgedec.apps.serve.core import ServeError

pytestmark = pytest.mark.e2e

ASK = {"role": "user", "content": "Hi"}
MORE = {"role": "user", "content": "Go on."}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}


@pytest.fixture
def ask(server: Any) -> Any:
    def respond(**fields: Any) -> Any:
        body = {"max_output_tokens": 40, "temperature": 0, **fields}
        if body.get("stream"):
            raw = server.ask_raw("POST", "/v1/responses", body)[2].decode()
            last = raw.strip().split("\n\n")[-1].split("data: ")[1]
            return 200, json.loads(last)["response"]
        return server.ask("POST", "/v1/responses", body)

    return respond


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL], "tool_choice": "required"}])
def test_a_reference_is_the_item(ask: Any, stream: bool, fields: dict[str, Any]) -> None:
    output = ask(input=[ASK], stream=stream, **fields)[1]["output"]
    references = [{"type": "item_reference", "id": item["id"]} for item in output]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "1"}
        for item in output
        if item["type"] == "function_call"
    ]
    whole, named = (ask(input=[ASK, *items, *results, MORE])[1] for items in (output, references))
    assert named["output"][0]["content"][0]["text"] == whole["output"][0]["content"][0]["text"]
    assert named["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    without = ask(input=[ASK, MORE])[1]
    assert without["usage"]["input_tokens"] < named["usage"]["input_tokens"]


def test_what_is_not_kept_is_refused(ask: Any) -> None:
    output = ask(input=[ASK], store=False)[1]["output"]
    for identity in (output[0]["id"], "msg_1", ""):
        reference = {"type": "item_reference", "id": identity}
        status, found = ask(input=[ASK, reference, MORE])
        assert (status, found["error"]["type"]) == (404, "not_found_error")


def test_an_answer_repeats_its_request(ask: Any) -> None:
    pytest.importorskip("openai")
    from openai.types.responses import Response

    choice = {"type": "function", "name": "f"}
    for fields in ({"tools": [TOOL], "tool_choice": choice}, {"tool_choice": "none"}, {}):
        for stream in (False, True):
            answer = ask(input=[ASK], stream=stream, instructions="Be brief.", **fields)[1]
            assert answer["tools"] == fields.get("tools", [])
            assert answer["tool_choice"] == fields.get("tool_choice", "auto")
            assert (answer["instructions"], answer["max_output_tokens"]) == ("Be brief.", 40)
            Response.model_validate(answer)


def test_the_oldest_items_go_first() -> None:
    kept = KeptItems(2)
    kept.keep({"id": name} for name in "abc")
    assert kept.find("c") == {"id": "c"}
    with pytest.raises(ServeError, match="'a'"):
        kept.find("a")
