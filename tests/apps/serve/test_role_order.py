"""Conversations in orders of roles that published chat templates refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from edgedec.apps.serve.core import ChatPrompt, Message
from edgedec.apps.serve.prompts import chat_text
from edgedec.apps.serve.role_order import written
from edgedec.models.errors import SessionError
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.methods.method_parts import DrafterParts, MethodParts
from edgedec.runtime.text.chat_template import ChatTemplate
from edgedec.runtime.text.prompt import PromptEncoder
from edgedec.runtime.text.tokenizer import Tokenizer

from ...runtime.conftest import ToyModel

FIRST = """{% for m in messages %}{% if m.role == 'system' and not loop.first %}
{{ raise_exception('System message must be at the beginning.') }}{% endif %}
[{{ m.role }}:{{ m.content }}]{% endfor %}"""
"""As Qwen3.5 has it."""

TURNS = """{% if messages[0].role == 'system' %}
{{ raise_exception('System role not supported') }}{% endif %}
{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}[{{ m.role }}:{{ m.content }}]{% endfor %}"""
"""As Gemma 2 has it."""

NEVER = "{{ raise_exception('Never!') }}"


def said(*turns: str) -> list[Message]:
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return [{"role": roles[turn[0]], "content": turn[1:]} for turn in turns]


@pytest.fixture(scope="module")
def text_of(small_bundle: Path, tmp_path_factory: Any) -> Callable[..., str]:
    """Returns what writes a conversation with a template."""
    engines: dict[str, Engine] = {}

    def text(template: str, messages: Sequence[Message]) -> str:
        if template not in engines:
            engines[template] = engine_with(template, small_bundle)
        found = chat_text(engines[template], ChatPrompt(messages, is_continued=False))
        return "".join(found.split())

    return text


def engine_with(template: str, bundle: Path) -> Engine:
    tokenizer = Tokenizer.load(bundle / "tokenizer.json")
    model = ToyModel(tokenizer.vocab_size)
    parts = MethodParts(256, model.capabilities.hidden, DrafterParts())
    encoder = PromptEncoder(tokenizer, ChatTemplate(template))
    return Engine(LoadedModel(model, tokenizer, encoder, parts, (2,)))


@pytest.mark.parametrize(
    ("template", "turns", "expected"),
    [
        (FIRST, ["sA", "uB"], "[system:A][user:B]"),
        (FIRST, ["sA", "sB", "uC"], "[system:AB][user:C]"),
        (FIRST, ["uA", "sB"], "[user:A][user:B]"),
        (FIRST, ["sA", "uB", "aC", "sD", "uE"], "[system:A][user:B][assistant:C][user:D][user:E]"),
        (TURNS, ["uA", "aB", "uC"], "[user:A][assistant:B][user:C]"),
        (TURNS, ["sA", "uB"], "[user:AB]"),
        (TURNS, ["uA", "uB"], "[user:AB]"),
        (TURNS, ["sA", "uB", "aC", "aD", "sE"], "[user:AB][assistant:CD][user:E]"),
        (TURNS, ["aA", "uB"], "[user:][assistant:A][user:B]"),
        (TURNS, ["sA"], "[user:A]"),
    ],
)
def test_no_text_of_a_conversation_is_lost(
    text_of: Callable[..., str], template: str, turns: list[str], expected: str
) -> None:
    assert text_of(template, said(*turns)) == expected


def test_what_no_order_helps_is_refused_in_the_template_s_words(
    text_of: Callable[..., str],
) -> None:
    with pytest.raises(SessionError, match="Never!"):
        text_of(NEVER, said("sA", "uB"))


def test_calls_of_joined_messages_stay() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {}}}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "content": "2", "tool_call_id": "1"}
    seen: list[Sequence[Message]] = []

    def write(messages: Sequence[Message]) -> None:
        seen.append(messages)
        raise SessionError("no")

    with pytest.raises(SessionError):
        written(write, [*said("uA", "aB"), calling, result, result])
    joined = {**said("aB")[0], "tool_calls": [call]}
    assert seen[2] == [*said("uA"), joined, result, result]
