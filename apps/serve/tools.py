"""Tools: how the model learns about them, and how its calls follow their schemas.

A call is a JSON object between ``<tool_call>`` and ``</tool_call>``, as the models of the Qwen and
Hermes families were trained to write it. Other models read it in the system message. gpt-oss writes
calls as parts of its output, whose headers name the tool.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from edgedec.apps.serve.core import AUTO, REQUIRED, ChatPrompt, Message, Tool
from edgedec.runtime.config import CONSTRAINTS, GenerationConfig
from edgedec.runtime.sampling.schema_grammar import constraint_grammar, space_lines
from edgedec.runtime.sampling.schema_loosening import Loosened, loosened_grammar
from edgedec.runtime.text.thoughts import CALL_MARKS

BEGIN, END = CALL_MARKS

_TOOLS = """You may call functions to answer the user. Their signatures are within <tools></tools>:
<tools>
{signatures}
</tools>
To call one, write a JSON object within <tool_call></tool_call>:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""

_FREE = """start: HEAD | BEFORE call {more}
HEAD: /(.|\\n)*/ & ~/(.|\\n)*<tool_call>(.|\\n)*/
BEFORE: /(.|\\n)*<tool_call>/ & ~/(.|\\n)*<tool_call>(.|\\n)+/
"""

_PARTS = """start: (thought | preamble)* ({replies})
thought: <|channel|> "analysis" <|message|> TEXT next
preamble: <|channel|> "commentary" <|message|> TEXT next
answer: <|channel|> "final" <|message|> {text}
next: <|end|> <|start|> "assistant"
TEXT: /(.|\n)*/
"""


def described(tool: Tool) -> dict[str, Any]:
    """Returns a tool in OpenAI's form, which chat templates read."""
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters) or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def tools_in_system_message(prompt: ChatPrompt) -> list[Message]:
    """Returns the messages of a conversation whose template knows nothing of tools."""
    signatures = "\n".join(json.dumps(described(tool)) for tool in prompt.tools)
    instructions = _TOOLS.format(signatures=signatures)
    messages = [_in_words(message) for message in prompt.messages]
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{instructions}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": instructions}, *messages]


def _in_words(message: Message) -> Message:
    """Returns a message whose calls, or results of calls, are part of its text."""
    if message["role"] == "tool":
        text = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": text}
    calls = [_call_text(call["function"]) for call in message.get("tool_calls", ())]
    text = "\n".join(part for part in (message["content"], *calls) if part)
    return {"role": message["role"], "content": text}


def _call_text(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"{BEGIN}\n{json.dumps(call, ensure_ascii=False)}\n{END}"


def grammar(prompt: ChatPrompt, settings: Mapping[str, Any], has_parts: bool = False) -> str:
    """Returns the grammars of an answer that may call tools, or has to, as llguidance lists them.

    settings: of the request. What they have a text follow, an answer without a call follows.
    has_parts: the model's output has parts with headers, thoughts and calls among them.

    Raises:
        ConfigError: The request's own schema, expression or grammar is refused.
    """
    config = GenerationConfig(**{k: v for k, v in settings.items() if k in CONSTRAINTS})
    text = config.constraint if prompt.choice == AUTO else None
    tools = _callable(prompt)
    parts = {f"a{i}": _arguments(tool).grammar for i, tool in enumerate(tools)}
    if text is not None:
        parts["text"] = constraint_grammar(*text)
    rules = _parts(prompt, tools, text is not None) if has_parts else _outer(prompt, tools, text)
    outer = {"lark_grammar": rules}
    return json.dumps({"grammars": [outer, *({"name": k, **part} for k, part in parts.items())]})


def loosened(prompt: ChatPrompt) -> dict[str, tuple[str, ...]]:
    """Returns by tool what of its schema is not enforced."""
    dropped = {tool.name: _arguments(tool).dropped for tool in _callable(prompt)}
    return {name: keywords for name, keywords in dropped.items() if keywords}


def _callable(prompt: ChatPrompt) -> list[Tool]:
    """Returns the tools that an answer may call."""
    return [tool for tool in prompt.tools if prompt.choice in (AUTO, REQUIRED, tool.name)]


def _outer(prompt: ChatPrompt, tools: Sequence[Tool], text: tuple[str, str] | None) -> str:
    """Returns the grammar of calls, and of texts without one.

    text: what those follow. A call's white space is then that of the text, for the library tells
    grammars apart by it, and follows the first of two that begin at one place.
    """
    space = space_lines(text[1]) if text is not None and text[0] == "json_schema" else ""
    line, separator = ("", f'"{BEGIN}"') if space else ('"\\n"', "SEPARATOR")
    may_be_several = prompt.is_parallel and prompt.choice in (AUTO, REQUIRED)
    more = f"({separator} call)*" if may_be_several else ""
    calls = [f'{line} {_head(tool)} @a{i} "}}" {line} "{END}"' for i, tool in enumerate(tools)]
    rules = f"call: {' | '.join(calls)}\n" + ("" if space else f"SEPARATOR: /\\s*{BEGIN}/\n")
    if prompt.choice == AUTO and text is None:
        return _FREE.format(more=more) + rules
    return f'{space}start: "{BEGIN}" call {more}{" | @text" if text else ""}\n{rules}'


def _parts(prompt: ChatPrompt, tools: Sequence[Tool], has_text: bool) -> str:
    """Returns the grammar of an output in parts; a call is the last one."""
    calls = [
        f"<|channel|> {json.dumps('commentary to=functions.' + tool.name, ensure_ascii=False)} "
        f'" " <|constrain|> "json" <|message|> @a{i}'
        for i, tool in enumerate(tools)
    ]
    replies = [*(["answer"] if prompt.choice == AUTO else []), *calls]
    return _PARTS.format(replies=" | ".join(replies), text="@text" if has_text else "TEXT")


def _head(tool: Tool) -> str:
    """Returns what a call begins with, as Lark writes a text."""
    head = '{"name": ' + json.dumps(tool.name) + ', "arguments": '
    return json.dumps(head, ensure_ascii=False)


def _arguments(tool: Tool) -> Loosened:
    return loosened_grammar(json.dumps({**tool.parameters, "type": "object"}))


def names(tools: Sequence[Tool]) -> list[str]:
    """Returns the names of ``tools``."""
    return [tool.name for tool in tools]
