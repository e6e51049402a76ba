"""Messages as people keep them: no content, null content, arguments as text or as a mapping."""

from __future__ import annotations

import json
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


ONE_CALL = (
    "{% for m in messages %}{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}"
    "{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}"
    "{{ m.thinking }}{{ m.content }}[{{ f.name }} {{ f.arguments | tojson }}]"
    "{% else %}<{{ m.content }}>{% endif %}{% endfor %}"
)


def called(*ids: str, **message: Any) -> dict[str, Any]:
    calls = [{"id": one, "function": {"name": f"f{one}", "arguments": {"q": one}}} for one in ids]
    return {"role": "assistant", "tool_calls": calls, **message}


def result(of: str = "", content: str = "") -> dict[str, Any]:
    return {"role": "tool", "content": content or of, **({"tool_call_id": of} if of else {})}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (
            [called("a", "b", content="Hm"), result("b"), result("a")],
            'Hm[fa {"q": "a"}]<a>[fb {"q": "b"}]<b>',
        ),
        (
            [called("a", "b"), result(content="1"), result(content="2"), called("c")],
            '[fa {"q": "a"}]<1>[fb {"q": "b"}]<2>[fc {"q": "c"}]',
        ),
        ([called("a", "b"), result("x"), result("b")], '[fa {"q": "a"}][fb {"q": "b"}]<b><x>'),
        ([called("a", content="Text", thinking="Hm")], 'Text[fa {"q": "a"}]'),
        ([called("a", content="", thinking="Hm")], 'Hm[fa {"q": "a"}]'),
        ([called("a", content="", reasoning_content="Hm")], 'Hm[fa {"q": "a"}]'),
    ],
)
def test_templates_of_one_call_are_given_a_message_for_each(
    tokenizer: Any, messages: list[dict[str, Any]], expected: str
) -> None:
    """As gpt-oss's, which shows the first call alone, and refuses a thought beside text."""
    encoder = PromptEncoder(tokenizer, ChatTemplate(ONE_CALL))
    assert encoder.render([{"role": "user", "content": "hi"}, *messages]) == f"<hi>{expected}"


SHOWN_CALLS = {
    "tojson": "{{ f.arguments | tojson }}",
    "guarded": "{% if f.arguments is string %}{{ f.arguments }}{% else %}{{ f.arguments | tojson }}"
               "{% endif %}",
    "items": "{% for k, v in f.arguments | items %}<{{ k }}>{{ v if v is string else v | tojson }}"
             "{% endfor %}",
    "call": "{{ m.tool_calls | tojson }}",
    "result": "{{ messages[2].content }}{{ messages[2].content | tojson }}",
    "tool": "{{ tools[0] | tojson(indent=2) }}",
}  # fmt: skip
ARGUMENTS = [
    '{"a": {"b": [1, {"c": null}]}}', '{"s": "<b> & \'q\' \\"d\\""}', "{}", '{"z": 1, "a": true}',
    '{"n": 12345678901234567890, "f": 1e20, "g": 0.1, "h": 1.0, "z": -0.0, "e": 1E5, "t": 1.10}',
    '{"u": "\u65e5\u672c \\u00e9 \U0001f600"}', '{"nl": "a\\nb\\tc"}', '{ "sp" :  1 }',
    '{"x": "{\\"y\\": 1}"}', '{"p": "C:\\\\dir\\/x"}', '{"l": "\u2028"}', '{"c": "\\u0000\\u001f"}',
]  # fmt: skip


@pytest.mark.parametrize("shown", SHOWN_CALLS)
@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("is_text", [False, True])
def test_arguments_are_written_as_transformers_writes_objects(
    tokenizer: Any, shown: str, arguments: str, is_text: bool
) -> None:
    """Nothing is escaped twice, or as HTML; text arguments may be written as they are."""
    rendering = pytest.importorskip("transformers.utils.chat_template_utils")
    source = (
        "{% for m in messages %}{% for c in m.tool_calls %}{% set f = c.function %}"
        f"{SHOWN_CALLS[shown]}{{% endfor %}}{{% endfor %}}"
    )
    value = json.loads(arguments)

    def conversation(form: Any) -> list[dict[str, Any]]:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": form}}
        answer = {"role": "assistant", "content": "", "tool_calls": [call]}
        result_ = {"role": "tool", "content": arguments, "tool_call_id": "1"}
        return [{"role": "user", "content": "hi"}, answer, result_]

    parameters = {"description": arguments, "default": value}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    forms = [value, *([arguments] if is_text and shown == "guarded" else [])]
    expected = [
        rendering.render_jinja_template([conversation(form)], tools=tools, chat_template=source)
        for form in forms
    ]
    encoder = PromptEncoder(tokenizer, ChatTemplate(source))
    text = encoder.render(conversation(arguments if is_text else value), tools)
    assert text in [rendered[0][0] for rendered in expected]
