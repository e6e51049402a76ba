"""Log-probabilities are those of an answer's text: none of thoughts, calls and stop texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from .scripted_model import call

ASK = [{"role": "user", "content": "Hi"}]
LOOK = {"name": "look", "parameters": {"type": "object", "properties": {"at": {}}}}
TEXT = "Let me look, 日本 🙂."
SAID = f"<think>\nHm, 日本?\n</think>\n\n{TEXT}\n" + call("look", at="日本") + call("look", at=TEXT)


@pytest.fixture
def server(serve: Callable[..., Any]) -> Any:
    return serve(SAID)


def spelt(infos: Iterable[Any]) -> str:
    return bytes(byte for info in infos for byte in info["bytes"]).decode()


def events(raw: bytes) -> list[dict[str, Any]]:
    lines = raw.decode().split("\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize("fields", [{}, {"stop": [" 🙂"]}, {"stop": ["}\n</tool_call>"]}])
def test_in_chats(server: Any, fields: dict[str, Any]) -> None:
    tools = [{"type": "function", "function": LOOK}]
    body = {"model": "scripted", "messages": ASK, "tools": tools, "logprobs": True, **fields}
    _, answer = server.ask("POST", "/v1/chat/completions", body)
    (choice,) = answer["choices"]
    is_cut = fields.get("stop") == [" 🙂"]
    text = "Let me look, 日本" if is_cut else f"{TEXT}\n"
    assert choice["message"]["content"] == text
    assert ("tool_calls" in choice["message"]) is not is_cut
    assert choice["message"]["reasoning_content"] == "Hm, 日本?"
    assert spelt(choice["logprobs"]["content"]) == text
    _, _, raw = server.ask_raw("POST", "/v1/chat/completions", {**body, "stream": True})
    choices = [one["choices"][0] for one in events(raw) if one["choices"]]
    infos = [info for one in choices for info in (one.get("logprobs") or {}).get("content", ())]
    assert spelt(infos) == text == "".join(one["delta"].get("content") or "" for one in choices)


def test_in_responses(server: Any) -> None:
    wanted = {"include": ["message.output_text.logprobs"]}
    tools = [{"type": "function", **LOOK}]
    body = {"model": "scripted", "input": ASK, "tools": tools, **wanted}
    _, answer = server.ask("POST", "/v1/responses", body)
    kinds = [item["type"] for item in answer["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    (part,) = answer["output"][1]["content"]
    assert spelt(part["logprobs"]) == part["text"] == f"{TEXT}\n"


def test_in_ollama_s_chats(server: Any) -> None:
    tools = [{"type": "function", "function": LOOK}]
    body = {"model": "scripted", "messages": ASK, "tools": tools, "logprobs": True}
    _, _, raw = server.ask_raw("POST", "/api/chat", body)
    lines = [json.loads(line) for line in raw.splitlines() if line.strip()]
    text = "".join(line["message"]["content"] for line in lines)
    assert spelt(info for line in lines for info in line.get("logprobs", ())) == text == f"{TEXT}\n"
