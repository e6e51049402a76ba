"""Messages, asked for by Anthropic's own client."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine

anthropic = pytest.importorskip("anthropic")
pytestmark = pytest.mark.e2e

SKY = [{"role": "user", "content": "Why is the sky blue?"}]
BILLING = "x-anthropic-billing-header: cc_version=1; cch=12345;"
SCHEMA = {
    "type": "object",
    "properties": {"days": {"type": "integer"}},
    "required": ["days"],
    "additionalProperties": False,
}
TOOLS = [
    {"name": "get_weather", "description": "Weather", "input_schema": SCHEMA},
    {"type": "web_search_20250305", "name": "web_search"},
]


@pytest.fixture
def client(server: Any) -> Any:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


@pytest.fixture
def asked() -> dict[str, Any]:
    fields = {"method": "plain", "seed": 1, "temperature": 0}
    return {"model": "smollm2", "messages": SKY, "max_tokens": 16, "extra_body": fields}


def test_an_answer_is_that_of_the_engine(client: Any, asked: Any, engine: Engine) -> None:
    text = engine.generate(SKY, GenerationConfig(max_new_tokens=16)).text
    answer = client.messages.create(**asked)
    assert (answer.content[0].text, answer.stop_reason) == (text, "max_tokens")
    assert answer.usage.output_tokens == 16
    with client.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == text
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 16)


def test_what_changes_with_every_request_is_left_out(client: Any, asked: Any) -> None:
    system = [{"type": "text", "text": "Be brief."}]
    billed = [{"type": "text", "text": BILLING}, *system]
    counted = {"model": "smollm2", "messages": SKY}
    wanted = client.messages.count_tokens(**counted, system=system).input_tokens
    assert client.messages.count_tokens(**counted, system=billed).input_tokens == wanted
    answer = client.messages.create(**{**asked, "max_tokens": 1}, system=billed)
    usage = answer.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == wanted


def test_a_tool_is_called(client: Any, asked: Any) -> None:
    choice = {"type": "tool", "name": "get_weather"}
    asked = {**asked, "tools": TOOLS, "tool_choice": choice, "max_tokens": 80}
    answer = client.messages.create(**asked)
    (block,) = [block for block in answer.content if block.type == "tool_use"]
    assert (block.name, answer.stop_reason) == ("get_weather", "tool_use")
    assert isinstance(block.input["days"], int)
    with client.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    assert [b.input for b in final.content if b.type == "tool_use"] == [block.input]
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "Rain."}
    messages = [
        *SKY,
        {"role": "assistant", "content": [block.model_dump()]},
        {"role": "user", "content": [result, {"type": "text", "text": "And tomorrow?"}]},
    ]
    more = client.messages.create(model="smollm2", messages=messages, max_tokens=4, tools=TOOLS)
    assert more.usage.output_tokens <= 4


def test_problems_have_anthropic_s_form(client: Any, asked: Any, server: Any) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(**{**asked, "model": "claude-9"})
    assert caught.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as wrong:
        client.messages.create(**{**asked, "extra_body": {"temperature": -1}})
    assert wrong.value.body["type"] == "error"
    long = [{"role": "user", "content": "hello " * 8200}]
    with pytest.raises(anthropic.BadRequestError) as caught_long:
        client.messages.create(**{**asked, "messages": long})
    error = caught_long.value.body["error"]
    assert error["type"] == "invalid_request_error"
    assert error["n_prompt_tokens"] > error["n_ctx"] == 8192
    status, document = server.ask("POST", "/v1/messages", b"{")
    assert (status, document["error"]["type"]) == (400, "invalid_request_error")
