"""Thoughts over each interface: apart from the answer, counted, without log-probabilities."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.methods.method_parts import DrafterParts, MethodParts
from edgedec.runtime.text.chat_template import ChatTemplate
from edgedec.runtime.text.prompt import PromptEncoder
from edgedec.runtime.text.tokenizer import Tokenizer

from ...runtime.conftest import ToyModel

ASK = [{"role": "user", "content": "Hi"}]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{# </think> #}"
SAID = "<think>\nA greeting, 日本.\n</think>\n\nHello 日本!"
REASONING, TEXT = "A greeting, 日本.", "Hello 日本!"


class Thinker:
    """Makes engines over a toy model that says ``SAID``, with SmolLM2's tokenizer."""

    def __init__(self, bundle: Path) -> None:
        self.tokenizer = Tokenizer.load(bundle / "tokenizer.json")
        self.encoder = PromptEncoder(self.tokenizer, ChatTemplate(TEMPLATE))
        self.n_prompt = len(self.encoder.encode(ASK))
        self.said = [*self.tokenizer.encode(SAID), 2]

    def load(self, bundle: Path) -> Engine:
        def rule(tokens: Sequence[int]) -> Any:
            row = np.zeros(self.tokenizer.vocab_size, np.float32)
            place = min(max(0, len(tokens) - self.n_prompt), len(self.said) - 1)
            row[self.said[place]] = 20.0
            return row

        model = ToyModel(self.tokenizer.vocab_size, rule)
        parts = MethodParts(256, model.capabilities.hidden, DrafterParts())
        return Engine(LoadedModel(model, self.tokenizer, self.encoder, parts, (2,)))


@pytest.fixture
def thinker(smollm2_bundle: Path) -> Thinker:
    return Thinker(smollm2_bundle)


@pytest.fixture
def server(make_server: Callable[..., Any], thinker: Thinker) -> Any:
    return make_server(load=thinker.load)


def events(server: Any, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    _, _, raw = server.ask_raw("POST", path, {**body, "stream": True})
    lines = [line[6:] for line in raw.decode().split("\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def test_chats_have_both_parts_and_count_the_thought(server: Any, thinker: Thinker) -> None:
    body = {"model": "smollm2", "messages": ASK, "logprobs": True, "top_logprobs": 1}
    _, answer = server.ask("POST", "/v1/chat/completions", body)
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == (TEXT, REASONING)
    n_reasoning = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    n_answer = len(thinker.tokenizer.encode(TEXT))
    assert 0 < n_reasoning < len(thinker.said) - n_answer
    infos = answer["choices"][0]["logprobs"]["content"]
    assert bytes(byte for one in infos for byte in one["bytes"]).decode() == TEXT
    streamed = events(server, "/v1/chat/completions", body)
    choices = [chunk["choices"][0] for chunk in streamed if chunk["choices"]]
    shown = [
        one for choice in choices for one in (choice.get("logprobs") or {"content": []})["content"]
    ]
    assert [one["bytes"] for one in shown] == [one["bytes"] for one in infos]
    thoughts = "".join(choice["delta"].get("reasoning_content", "") for choice in choices)
    assert thoughts == REASONING


def test_stop_texts_end_the_answer_and_leave_its_log_probabilities(server: Any) -> None:
    body = {"model": "smollm2", "messages": ASK, "logprobs": True, "stop": ["本!", "greet"]}
    _, answer = server.ask("POST", "/v1/chat/completions", body)
    (choice,) = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello 日", "stop")
    spelt = bytes(byte for one in choice["logprobs"]["content"] for byte in one["bytes"])
    assert spelt.decode() == "Hello 日"


def test_messages_begin_with_usage_and_think_in_a_block(server: Any, thinker: Thinker) -> None:
    body = {"model": "smollm2", "messages": ASK, "max_tokens": 64}
    found = events(server, "/v1/messages", body)
    assert found[0]["message"]["usage"]["input_tokens"] == thinker.n_prompt
    starts = [e["content_block"]["type"] for e in found if e["type"] == "content_block_start"]
    assert starts == ["thinking", "text"]
    deltas = [e["delta"] for e in found if e["type"] == "content_block_delta"]
    assert "".join(d.get("thinking", "") for d in deltas) == REASONING
    assert "".join(d.get("text", "") for d in deltas) == TEXT


def test_responses_end_the_text_of_the_thought(server: Any) -> None:
    found = events(server, "/v1/responses", {"model": "smollm2", "input": "Hi"})
    (done,) = [e for e in found if e["type"] == "response.reasoning_text.done"]
    assert (done["text"], done["content_index"], done["output_index"]) == (REASONING, 0, 0)
    usage = found[-1]["response"]["usage"]
    assert usage["output_tokens_details"]["reasoning_tokens"] > 0


def parts(path: str, answer: dict[str, Any]) -> tuple[str, str]:
    """Returns the text and the thought of an answer."""
    if path == "/v1/messages":
        blocks = {block["type"]: block for block in answer["content"]}
        return blocks["text"]["text"], blocks["thinking"]["thinking"]
    if path == "/v1/responses":
        items = {item["type"]: item["content"][0]["text"] for item in answer["output"]}
        return items["message"], items["reasoning"]
    message = answer["message"] if path == "/api/chat" else answer["choices"][0]["message"]
    return message["content"], message.get("reasoning_content") or message.get("thinking")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"reasoning_budget": 4}),
        ("/v1/chat/completions", {"thinking_budget_tokens": 4, "thinking_budget": -1}),
        ("/v1/chat/completions", {"reasoning": {"max_tokens": 4}}),
        ("/v1/responses", {"thinking_token_budget": 4}),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 4}, "max_tokens": 64}),
        ("/api/chat", {"thinking_budget": 4, "stream": False}),
    ],
)
def test_a_budget_ends_the_thought(server: Any, path: str, fields: dict[str, Any]) -> None:
    """The model would think a little longer; the rest of its script follows the mark."""
    prompt = {"input": "Hi"} if path == "/v1/responses" else {"messages": ASK}
    _, answer = server.ask("POST", path, {"model": "smollm2", **prompt, **fields})
    text, thought = parts(path, answer)
    assert thought == "A greeting,"  # with the line break before it, four tokens
    assert text.endswith(TEXT)


def test_ollama_has_a_thought(server: Any) -> None:
    body = {"model": "smollm2", "messages": ASK, "stream": False}
    _, answer = server.ask("POST", "/api/chat", body)
    message = answer["message"]
    assert (message["content"], message["thinking"]) == (TEXT, REASONING)
