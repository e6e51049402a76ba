"""Responses, asked for by OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgedec.models.errors import SessionError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.stream import Piece, Stream

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.e2e

QUESTION = "Why is the sky blue?"
SCHEMA = {
    "type": "object",
    "properties": {"days": {"type": "integer"}},
    "required": ["days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True},
    {"type": "web_search"},
    {"type": "custom", "name": "apply_patch"},
]


@pytest.fixture
def ask(server: Any) -> Any:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

    def respond(**fields: Any) -> Any:
        asked = {"model": "smollm2", "input": QUESTION, "max_output_tokens": 16, "temperature": 0}
        return client.responses.create(**{**asked, **fields})

    return respond


def test_an_answer_is_that_of_the_engine(ask: Any, engine: Engine) -> None:
    message = [{"role": "user", "content": QUESTION}]
    text = engine.generate(message, GenerationConfig(max_new_tokens=16)).text
    answer = ask()
    assert (answer.output_text, answer.status) == (text, "incomplete")
    assert answer.usage.output_tokens == 16
    events = list(ask(stream=True))
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(pieces) == text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == text


def test_a_tool_is_called_and_its_result_read(ask: Any) -> None:
    asked = {"tools": TOOLS, "tool_choice": "required", "max_output_tokens": 80}
    (call,) = ask(**asked).output
    assert (call.type, call.name) == ("function_call", "get_weather")
    assert isinstance(json.loads(call.arguments)["days"], int)
    (done,) = [e for e in ask(stream=True, **asked) if e.type == "response.output_item.done"]
    assert done.item.arguments == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    conversation = [{"role": "user", "content": QUESTION}, call.model_dump(), result]
    assert ask(input=conversation, tools=TOOLS, tool_choice="none").output_text


def test_tools_may_come_in_namespaces(ask: Any) -> None:
    """As Codex sends them; one name may be in two of them."""
    spaces = [
        {"type": "namespace", "name": name, "description": "-", "tools": TOOLS} for name in "ab"
    ]
    wanted = {"input": QUESTION, "max_output_tokens": 60}
    for name, space in (("get_weather", "a"), ("b.get_weather", "b")):
        asked = {**wanted, "tools": spaces, "tool_choice": {"type": "function", "name": name}}
        (call,) = ask(**asked).output
        assert (call.type, call.name, call.namespace) == ("function_call", "get_weather", space)
        events = list(ask(stream=True, **asked))
        items = [event.item for event in events if event.type.startswith("response.output_item")]
        assert [(item.name, item.namespace) for item in items] == [("get_weather", space)] * 2


def test_instructions_and_formats(ask: Any) -> None:
    wanted = {"type": "json_schema", "name": "days", "schema": SCHEMA}
    answer = ask(instructions="Be brief.", text={"format": wanted}, max_output_tokens=60)
    assert isinstance(json.loads(answer.output_text)["days"], int)


def test_log_probabilities_are_those_of_chats(ask: Any, server: Any) -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    chat = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 16, "temperature": 0}
    wanted = {"logprobs": True, "top_logprobs": 2}
    _, found = server.ask("POST", "/v1/chat/completions", {**chat, **wanted})
    expected = found["choices"][0]["logprobs"]["content"]
    (part,) = ask(**asked).output[0].content
    assert [one.model_dump() for one in part.logprobs] == expected
    events = list(ask(stream=True, **asked))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [one.model_dump() for event in deltas for one in event.logprobs] == [
        {**one, "top_logprobs": one["top_logprobs"]} for one in expected
    ]
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    assert [one.logprob for one in done.logprobs] == [one["logprob"] for one in expected]
    assert [one.model_dump() for one in events[-1].response.output[0].content[0].logprobs] == (
        expected
    )
    assert ask(top_logprobs=2).output[0].content[0].logprobs == []  # as at OpenAI: not included


def test_a_stream_that_fails_ends_as_the_package_expects(
    server: Any, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(self: Stream, take: Any) -> Any:
        take(Piece("It"))
        raise SessionError("the weights are gone")

    monkeypatch.setattr(Stream, "write", write)
    events = list(ask(stream=True))
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "error",
        "response.failed",
    ]
    for event in events:  # the package builds its types unchecked
        type(event).model_validate_json(event.model_dump_json(exclude_unset=True))
    failed = events[-1].response
    assert (failed.status, failed.error.code) == ("failed", "server_error")
    assert failed.error.message == events[-2].message == "the weights are gone"
    assert [event.sequence_number for event in events] == list(range(len(events)))


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/completion"])
def test_a_client_that_leaves_ends_an_answer_without_limit(
    server: Any, until: Any, path: str, is_streamed: bool
) -> None:
    prompt = {
        "/v1/responses": {"input": QUESTION},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": QUESTION}]},
        "/completion": {"prompt": QUESTION},
    }[path]
    body = {**prompt, "min_tokens": 8000, "stream": is_streamed}
    until(lambda: server.service.n_running == 0)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {server.host}\r\nContent-Length: {len(data)}\r\n\r\n"
    with server.connect() as client:
        client.sendall(head.encode() + data)
        until(lambda: server.service.n_running == 1)
    until(lambda: server.service.n_running == 0)


def test_what_is_not_kept_is_refused(ask: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="not stored"):
        ask(previous_response_id="resp_1")
