"""What earlier turns contain is read as it is, so that a conversation goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgedec.apps.serve.api import anthropic, ollama, openai_chat, openai_responses
from edgedec.apps.serve.api.endpoint import AnswerHead
from edgedec.apps.serve.api.fields import call_arguments
from edgedec.apps.serve.core import ChatPrompt, Message

REPLY = AnswerHead("1", 0)
ASK = {"role": "user", "content": "Go on."}


def messages_of(endpoint: Any, body: dict[str, Any]) -> list[Message]:
    """Returns the messages that the model is given."""
    (prompt,) = endpoint.read(json.dumps(body).encode(), REPLY).request.prompts
    assert isinstance(prompt, ChatPrompt)
    return list(prompt.messages)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"city": "Paris"}', {"city": "Paris"}),
        ('{"city": "Par', {"city": "Par"}),
        ('{"days": [1, 2', {"days": [1, 2]}),
        ('{"city": ', {}),
        ('{"city"', {}),
        ("{", {}),
        ("", {}),
        ("null", {}),
        (None, {}),
        ("Paris", {"arguments": "Paris"}),
        ('"Paris"', {"arguments": "Paris"}),
        ("[1]", {"arguments": [1]}),
        ({"city": "Paris"}, {"city": "Paris"}),
        ('{"a": ' * 5000, None),
    ],
)
def test_arguments_that_are_no_json(text: Any, arguments: Any) -> None:
    found = call_arguments(text)
    assert isinstance(found, dict)
    assert arguments is None or found == arguments


def call(**fields: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    return {"role": "assistant", "tool_calls": [{"id": "c", "function": function, **fields}]}


CALLED = {"name": "f", "arguments": {}}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "assistant", "content": None}, {"content": ""}),
        ({"role": "assistant"}, {"content": ""}),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            {"content": "No."},
        ),
        ({"role": "assistant", "content": None, "refusal": "No."}, {"content": "No."}),
        ({"role": "assistant", "content": [{"type": "text", "text": None}]}, {"content": ""}),
        ({"role": "assistant", "content": [{"type": "thinking", "thinking": []}]}, {"content": ""}),
        (
            {"role": "assistant", "content": "a", "audio": {"id": "x"}, "tool_calls": None},
            {"content": "a"},
        ),
        (call(id=None), {"content": "", "function": CALLED}),
        (call(type=None, index=0), {"content": "", "function": CALLED}),
        (call(function={"name": "f", "arguments": None}), {"function": CALLED}),
        (
            call(function={"name": None, "arguments": "{"}),
            {"function": {"name": "", "arguments": {}}},
        ),
        (
            call(function={"name": "f", "arguments": '{"a": "b'}),
            {"function": {"name": "f", "arguments": {"a": "b"}}},
        ),
        (
            call(type="custom", function=None, custom={"name": "f", "input": "x"}),
            {"function": {"name": "f", "arguments": {"input": "x"}}},
        ),
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            {"content": "", "function": CALLED},
        ),
        ({"role": "tool", "content": None, "tool_call_id": None}, {"role": "tool", "content": ""}),
        ({"role": "function", "name": "f", "content": "x"}, {"role": "tool", "content": "x"}),
        ({"role": "developer", "content": "x"}, {"role": "system", "content": "x"}),
    ],
)
def test_chat(message: dict[str, Any], expected: dict[str, Any]) -> None:
    found, _ = messages_of(openai_chat.ENDPOINT, {"messages": [message, ASK]})
    if "function" in expected:
        assert found["tool_calls"][0]["function"] == expected["function"]
    for name in expected.keys() - {"function"}:
        assert found[name] == expected[name]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"type": None, "role": "assistant", "content": "a"}, {"content": "a"}),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            {"content": "No."},
        ),
        ({"type": "message", "role": "assistant", "id": None, "content": None}, {"content": ""}),
        (
            {"type": "function_call", "call_id": None, "name": "f", "arguments": "{"},
            {"function": CALLED},
        ),
        (
            {"type": "function_call", "id": None, "call_id": "c", "name": "f", "arguments": None},
            {"function": CALLED},
        ),
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"},
            {"function": {"name": "f", "arguments": {"input": "x"}}},
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": None},
            {"role": "tool", "content": ""},
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": {"a": 1}},
            {"content": '{"a": 1}'},
        ),
        (
            {
                "type": "function_call_output",
                "call_id": "c",
                "output": [
                    {"type": "input_text", "text": "a"},
                    {"type": "input_image", "image_url": "data:x"},
                ],
            },
            {"content": "a[input_image left out: this model reads text alone]"},
        ),
        (
            {"type": "custom_tool_call_output", "call_id": "c", "output": "x"},
            {"role": "tool", "content": "x"},
        ),
        ({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}}, None),
        ({"type": "reasoning", "id": "rs_1", "summary": [], "content": None}, None),
        ({"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": []}, None),
    ],
)
def test_responses(item: dict[str, Any], expected: dict[str, Any] | None) -> None:
    found = messages_of(openai_responses.ENDPOINT, {"input": [item, ASK]})
    if expected is None:
        assert len(found) == 1
        return
    if "function" in expected:
        assert found[0]["tool_calls"][0]["function"] == expected["function"]
    for name in expected.keys() - {"function"}:
        assert found[0][name] == expected[name]


@pytest.mark.parametrize(
    ("role", "block", "expected"),
    [
        ("assistant", {"type": "text", "text": None}, {"content": ""}),
        ("assistant", {"type": "redacted_thinking", "data": "x"}, {"content": ""}),
        ("assistant", {"type": "thinking", "thinking": "x", "signature": None}, {"content": ""}),
        (
            "assistant",
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            {"content": ""},
        ),
        (
            "assistant",
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
            {"content": ""},
        ),
        (
            "assistant",
            {"type": "mcp_tool_use", "id": "m", "name": "x", "server_name": "y", "input": {}},
            {"content": ""},
        ),
        ("assistant", {"type": "container_upload", "file_id": "f"}, {"content": ""}),
        (
            "assistant",
            {"type": "tool_use", "id": None, "name": "f", "input": None},
            {"function": CALLED},
        ),
        (
            "assistant",
            {"type": "tool_use", "id": "t", "name": "f", "input": '{"a": 1'},
            {"function": {"name": "f", "arguments": {"a": 1}}},
        ),
        (
            "user",
            {"type": "tool_result", "tool_use_id": None, "content": None},
            {"role": "tool", "content": ""},
        ),
        (
            "user",
            {
                "type": "tool_result",
                "tool_use_id": "t",
                "content": [{"type": "image", "source": {}}],
            },
            {"content": "[image left out: this model reads text alone]"},
        ),
        (
            "user",
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "a"},
            },
            {"content": "a"},
        ),
        (
            "user",
            {
                "type": "search_result",
                "source": "x",
                "title": "y",
                "content": [{"type": "text", "text": "a"}],
            },
            {"content": "a"},
        ),
    ],
)
def test_messages(role: str, block: dict[str, Any], expected: dict[str, Any]) -> None:
    body = {"messages": [{"role": role, "content": [block]}, ASK], "max_tokens": 1}
    found = messages_of(anthropic.ENDPOINT, body)[0]
    if "function" in expected:
        assert found["tool_calls"][0]["function"] == expected["function"]
    for name in expected.keys() - {"function"}:
        assert found[name] == expected[name]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            {"role": "assistant", "content": None, "tool_calls": None, "thinking": None},
            {"content": ""},
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": None}}]},
            {"function": CALLED},
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            {"function": CALLED},
        ),
        ({"role": "tool", "content": None, "tool_name": None}, {"role": "tool", "content": ""}),
        ({"role": "user", "content": "a", "images": []}, {"content": "a"}),
        ({"role": "user", "content": "a", "images": None}, {"content": "a"}),
    ],
)
def test_ollama(message: dict[str, Any], expected: dict[str, Any]) -> None:
    found = messages_of(ollama.CHAT, {"model": "a", "messages": [message, ASK]})[0]
    if "function" in expected:
        assert found["tool_calls"][0]["function"] == expected["function"]
    for name in expected.keys() - {"function"}:
        assert found[name] == expected[name]


@pytest.mark.parametrize("description", [None, "", "x"])
def test_descriptions_may_be_null(description: Any) -> None:
    function = {"name": "f", "description": description, "parameters": None}
    tools = [{"type": "function", "function": function}]
    read = openai_chat.ENDPOINT.read(
        json.dumps({"messages": [ASK], "tools": tools}).encode(), REPLY
    )
    assert read.request.prompts[0].tools[0].description == (description or "")  # type: ignore[union-attr]
    tool = {"name": "f", "description": description, "input_schema": {"type": "object"}}
    body = {"messages": [ASK], "tools": [tool], "max_tokens": 1}
    read = anthropic.ENDPOINT.read(json.dumps(body).encode(), REPLY)
    assert read.request.prompts[0].tools[0].description == (description or "")  # type: ignore[union-attr]


@pytest.mark.e2e
@pytest.mark.parametrize("n", [12, 15, 18, 21])
def test_a_call_that_was_cut_off_is_read_in_the_next_turn(server: Any, n: int) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    function = {"name": "f", "parameters": schema}
    chat = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    body = {"messages": [ASK], "max_tokens": n, "temperature": 0, **chat}
    message = server.ask("POST", "/v1/chat/completions", body)[1]["choices"][0]["message"]
    again = {"messages": [ASK, message, ASK], "max_tokens": 2, "tools": chat["tools"]}
    assert server.ask("POST", "/v1/chat/completions", again)[0] == 200
    body = {"input": [ASK], "max_output_tokens": n, "temperature": 0, "tool_choice": "required"}
    body["tools"] = [{"type": "function", **function}]
    output = server.ask("POST", "/v1/responses", body)[1]["output"]
    again = {"input": [ASK, *output, ASK], "max_output_tokens": 2}
    assert server.ask("POST", "/v1/responses", again)[0] == 200
    body = {"messages": [ASK], "max_tokens": n, "temperature": 0, "tool_choice": {"type": "any"}}
    body["tools"] = [{"name": "f", "input_schema": schema}]
    content = server.ask("POST", "/v1/messages", body)[1]["content"]
    calls = [block["input"] for block in content if block["type"] == "tool_use"]
    written = [call["function"]["arguments"] for call in message.get("tool_calls", [])]
    assert calls == [call_arguments(text) for text in written]
    again = {"messages": [ASK, {"role": "assistant", "content": content}, ASK], "max_tokens": 2}
    assert server.ask("POST", "/v1/messages", again)[0] == 200
