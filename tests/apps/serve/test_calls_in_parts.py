"""Calls of tools as gpt-oss writes them: parts of its output, whose headers name the tool."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.methods.method_parts import DrafterParts, MethodParts
from edgedec.runtime.text.chat_template import ChatTemplate
from edgedec.runtime.text.prompt import PromptEncoder
from edgedec.runtime.text.tokenizer import Tokenizer

from ...runtime.conftest import ToyModel

pytest.importorskip("llguidance")

MARKS = [
    "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|constrain|>", "<|call|>",
]  # fmt: skip
TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
    "{% for m in messages %}{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}"
    "<|start|>assistant to=functions.{{ f.name }}<|channel|>commentary json<|message|>"
    "{{ f.arguments | tojson }}<|call|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "<|start|>assistant"
)
ASK = [{"role": "user", "content": "Hi"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]
CALLED = (
    "<|channel|>analysis<|message|>They ask.<|end|><|start|>assistant<|channel|>commentary<|message"
    "|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
    '<|constrain|>json<|message|>{"city": "Ulm 日"}<|call|>'
)
ANSWERED = "<|channel|>final<|message|>Hello 日<|return|>"
WRONG = (
    '<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>{"city": 1}<|call|>'
)


class Scripted:
    """Makes engines over a toy model that wants to say a text, token by token, wherever it is."""

    def __init__(self, bundle: Path, said: str) -> None:
        backend = tokenizers.Tokenizer.from_file(str(bundle / "tokenizer.json"))
        backend.add_special_tokens(MARKS)
        self.tokenizer = Tokenizer(backend)
        self.said = self.tokenizer.encode_rendered(said, {})
        self.stops = tuple(backend.token_to_id(mark) for mark in ("<|return|>", "<|call|>"))

    def load(self, bundle: Path) -> Engine:
        opening = self.tokenizer.encode_rendered("<|start|>assistant", {})

        def rule(tokens: Sequence[int]) -> Any:
            row = np.zeros(self.tokenizer.vocab_size, np.float32)
            text = list(tokens)
            starts = [i for i in range(len(text)) if text[i : i + len(opening)] == opening]
            n = len(text) - starts[0] - len(opening) if starts else 0
            row[self.said[min(n, len(self.said) - 1)]] = 20.0
            return row

        model = ToyModel(self.tokenizer.vocab_size, rule)
        parts = MethodParts(512, model.capabilities.hidden, DrafterParts())
        encoder = PromptEncoder(self.tokenizer, ChatTemplate(TEMPLATE))
        return Engine(LoadedModel(model, self.tokenizer, encoder, parts, self.stops))


@pytest.fixture
def says(make_server: Callable[..., Any], smollm2_bundle: Path) -> Callable[[str], Any]:
    return lambda text: make_server(load=Scripted(smollm2_bundle, text).load)


def body(**more: Any) -> dict[str, Any]:
    return {"model": "smollm2", "messages": ASK, "tools": TOOLS, "max_tokens": 90, **more}


def events(server: Any, path: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
    _, _, raw = server.ask_raw("POST", path, {**asked, "stream": True})
    lines = [line[6:] for line in raw.decode().split("\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def test_a_call_is_a_call_over_each_interface(says: Callable[[str], Any]) -> None:
    server = says(CALLED)
    _, answer = server.ask("POST", "/v1/chat/completions", body(logprobs=True))
    (choice,) = answer["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("They ask.", "I look.")
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Ulm 日"}'}
    assert choice["finish_reason"] == "tool_calls"
    spelt = bytes(byte for one in choice["logprobs"]["content"] for byte in one["bytes"])
    assert spelt.decode() == "I look."
    deltas = [one["choices"][0]["delta"] for one in events(server, "/v1/chat/completions", body())]
    pieces = [piece["function"] for delta in deltas for piece in delta.get("tool_calls", ())]
    assert "".join(piece.get("name", "") for piece in pieces) == "get_weather"
    assert "".join(piece["arguments"] for piece in pieces) == '{"city": "Ulm 日"}'
    assert len(pieces) > 2  # it came bit by bit
    tools = [{"name": "get_weather", "input_schema": PARAMETERS}]
    _, found = server.ask("POST", "/v1/messages", body(tools=tools))
    kinds = [block["type"] for block in found["content"]]
    assert (kinds, found["stop_reason"]) == (["thinking", "text", "tool_use"], "tool_use")
    assert found["content"][2]["input"] == {"city": "Ulm 日"}


def test_answers_are_answers(says: Callable[[str], Any]) -> None:
    server = says(ANSWERED)
    _, answer = server.ask("POST", "/v1/chat/completions", body())
    assert answer["choices"][0]["message"]["content"] == "Hello 日"
    _, answer = server.ask("POST", "/v1/chat/completions", {**body(), "tools": None})
    assert answer["choices"][0]["message"]["content"] == "Hello 日"


@pytest.mark.parametrize(
    "choice", ["required", "auto", TOOLS[0] | {"function": {"name": "get_weather"}}]
)
def test_calls_follow_the_tools(says: Callable[[str], Any], choice: Any) -> None:
    _, answer = says(WRONG).ask("POST", "/v1/chat/completions", body(tool_choice=choice))
    calls = answer["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["get_weather"]
    assert calls[0]["function"]["arguments"].startswith('{"city": "')


def test_a_required_call_is_no_answer(says: Callable[[str], Any]) -> None:
    asked = body(tool_choice="required")
    _, answer = says(ANSWERED).ask("POST", "/v1/chat/completions", asked)
    assert not answer["choices"][0]["message"]["content"]


def test_calls_of_earlier_turns_are_written_its_way(says: Callable[[str], Any]) -> None:
    calls = [
        {"id": one, "type": "function", "function": {"name": one, "arguments": '{"a": 1}'}}
        for one in ("f", "g")
    ]
    results = [{"role": "tool", "tool_call_id": one, "content": one} for one in ("g", "f")]
    messages = [*ASK, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    _, found = says(ANSWERED).ask("POST", "/apply-template", {"messages": messages})
    shown = (
        "<|start|>assistant to=functions.{0}<|channel|>commentary json<|message|>"
        '{{"a": 1}}<|call|><|start|>tool<|message|>{0}<|end|>'
    )
    assert shown.format("f") + shown.format("g") in found["prompt"]


def test_without_thoughts_the_answer_begins_at_once(says: Callable[[str], Any]) -> None:
    server = says("Hi there<|return|>")
    asked = {**body(), "tools": None, "chat_template_kwargs": {"enable_thinking": False}}
    _, found = server.ask("POST", "/apply-template", {"messages": ASK, **asked})
    assert found["prompt"].endswith("<|start|>assistant<|channel|>final<|message|>")
