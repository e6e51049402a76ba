"""Messages as people keep them: no content, null content, arguments as text or as a mapping."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.runtime.text.chat_template import ChatTemplate
from edgedec.runtime.text.prompt import PromptEncoder

_CALLS = "{% for c in m.tool_calls %}{% set f = c.function %}[{{ f.name }} "
_END = "]{% endfor %}"
_ITEMS = "{% for k, v in f.arguments.items() %}{{ k }}={{ v }}{% endfor %}"
BODIES = {
    "mapping, content joined": (
        "{{ '|' + m.content }}" + _CALLS + "{{ f.arguments | tojson }}" + _END,
        '|[look {"q": "fox"}]',
    ),
    "items": (_CALLS + _ITEMS + _END, "[look q=fox]"),
    "text, told by null": (  # as DeepSeek's
        "{% if m['content'] is none %}" + _CALLS + "{{ '' + f.arguments }}" + _END
        + "{% else %}{{ m.content }}{% endif %}",
        '[look {"q": "fox"}]',
    ),
    "content shown": ("{{ m.content }}" + _CALLS + "{{ f.arguments | tojson }}" + _END,
                      '[look {"q": "fox"}]'),
}  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("arguments", [{"q": "fox"}, '{"q": "fox"}'])
@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_a_call_is_written_whatever_its_form(
    tokenizer: Any, body: str, arguments: Any, content: dict[str, Any]
) -> None:
    source, expected = BODIES[body]
    whole = "{% for m in messages %}{% if m.role == 'assistant' %}" + source
    encoder = PromptEncoder(tokenizer, ChatTemplate(whole + "{% endif %}{% endfor %}"))
    call = {"type": "function", "function": {"name": "look", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", **content, "tool_calls": [call]},
    ]
    assert encoder.render(messages) == expected


@pytest.mark.parametrize(("content", "expected"), [(None, "[look{}]"), ("", "[look{}]<>")])
def test_null_and_nothing_stay_apart_where_both_are_read(
    tokenizer: Any, content: str | None, expected: str
) -> None:
    source = (  # DeepSeek R1's writes a turn more for content that is not null
        "{% for m in messages %}{% for c in m.tool_calls %}"
        "[{{ c.function.name + c.function.arguments }}]{% endfor %}"
        "{% if m.role == 'assistant' and m.content is not none %}<{{ m.content }}>{% endif %}"
        "{% endfor %}"
    )
    call = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [{"role": "assistant", "content": content, "tool_calls": [call]}]
    assert PromptEncoder(tokenizer, ChatTemplate(source)).render(messages) == expected


@pytest.mark.parametrize("content", [{}, {"content": None}])
def test_an_answer_of_nothing_is_empty(tokenizer: Any, content: dict[str, Any]) -> None:
    template = ChatTemplate("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    text = PromptEncoder(tokenizer, template).render(
        [{"role": "user", "content": "hi"}, {"role": "assistant", **content}]
    )
    assert text == "<hi><>"
