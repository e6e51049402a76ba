"""Tools: how the model learns about them, and how its calls follow their schemas.

A call is a JSON object between ``<tool_call>`` and ``</tool_call>``, as the models of the Qwen and
Hermes families were trained to write it. Other models read it in the system message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from edgedec.apps.serve.core import AUTO, REQUIRED, ChatPrompt, Message, Tool

BEGIN, END = "<tool_call>", "</tool_call>"

_TOOLS = """You may call functions to answer the user. Their signatures are within <tools></tools>:
<tools>
{signatures}
</tools>
To call one, write a JSON object within <tool_call></tool_call>:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""

_GRAMMAR = r"""
call: {calls}
SEPARATOR: /\s*<tool_call>/
HEAD: /(.|\n)*/ & ~/(.|\n)*<tool_call>(.|\n)*/
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


def grammar(prompt: ChatPrompt) -> str:
    """Returns the grammar of an answer that may call tools, or has to."""
    tools = [tool for tool in prompt.tools if prompt.choice in (AUTO, REQUIRED, tool.name)]
    may_be_several = prompt.is_parallel and prompt.choice in (AUTO, REQUIRED)
    more = "(SEPARATOR call)*" if may_be_several else ""
    called = f'"{BEGIN}" call {more}'
    start = f"HEAD | HEAD {called}" if prompt.choice == AUTO else called
    return f"start: {start}\n" + _GRAMMAR.format(calls=" | ".join(map(_call_rule, tools)))


def _call_rule(tool: Tool) -> str:
    head = json.dumps('{"name": ' + json.dumps(tool.name) + ', "arguments": ', ensure_ascii=False)
    schema = json.dumps(_arguments_schema(tool))
    return f'"\\n" {head} %json {schema} "}}\\n{END}"'


def _arguments_schema(tool: Tool) -> dict[str, Any]:
    return {**tool.parameters, "type": "object"}


def names(tools: Sequence[Tool]) -> list[str]:
    """Returns the names of ``tools``."""
    return [tool.name for tool in tools]
