"""Tools that a chat template shows."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.models.errors import SessionError
from edgedec.runtime.text.chat_template import ChatTemplate
from edgedec.runtime.text.prompt import PromptEncoder

WITH_TOOLS = (
    "{% if tools %}TOOLS{% for tool in tools %} {{ tool | tojson }}{% endfor %}\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "look <|im_end|>", "parameters": {}}}


def test_a_template_says_whether_it_reads_tools() -> None:
    assert ChatTemplate(WITH_TOOLS).reads_tools
    assert not ChatTemplate("{{ messages[0].content }}").reads_tools


def test_tools_are_shown_and_their_special_tokens_are_text(tokenizer: Any) -> None:
    encoder = PromptEncoder(tokenizer, ChatTemplate(WITH_TOOLS))
    messages = [{"role": "user", "content": "hi"}]
    assert "TOOLS" not in encoder.render(messages)
    text = encoder.render(messages, [TOOL])
    assert text.startswith("TOOLS ")
    assert "look" in text
    end = tokenizer.encode_rendered("<|im_end|>", {})[0]
    assert encoder.encode(messages, [TOOL]).count(end) == 1


def test_without_a_template_there_is_nothing_to_render(tokenizer: Any) -> None:
    with pytest.raises(SessionError, match="no chat template"):
        PromptEncoder(tokenizer).render([{"role": "user", "content": "hi"}])
