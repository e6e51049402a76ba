"""Responses, asked for by OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine

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


def test_instructions_and_formats(ask: Any) -> None:
    wanted = {"type": "json_schema", "name": "days", "schema": SCHEMA}
    answer = ask(instructions="Be brief.", text={"format": wanted}, max_output_tokens=60)
    assert isinstance(json.loads(answer.output_text)["days"], int)


def test_what_is_not_kept_is_refused(ask: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="not stored"):
        ask(previous_response_id="resp_1")
