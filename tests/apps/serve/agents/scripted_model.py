"""A model that says what a script states: the next turn behind each result of a tool."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.methods.method_parts import DrafterParts, MethodParts
from edgedec.runtime.text.chat_template import ChatTemplate
from edgedec.runtime.text.prompt import PromptEncoder
from edgedec.runtime.text.tokenizer import Tokenizer

from ....runtime.conftest import ToyModel

CONTEXT = 1 << 16  # Claude Code's first prompt has 20,000 tokens

TEMPLATE = """
{%- if tools %}{{ '<|im_start|>system\n<tools>' }}
{%- for tool in tools %}{{ '\n' + tool|tojson }}{% endfor %}{{ '\n</tools><|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}
{%- if m.role == 'tool' %}{{ '<tool_response>' + m.content + '</tool_response>' }}
{%- else %}{{ m.content }}{% endif %}
{%- for call in m.tool_calls or () %}{{ '\n<tool_call>\n{"name": "' + call.function.name +
'", "arguments": ' + call.function.arguments|tojson + '}\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""Writes conversations as the models of the Qwen family read them."""

RESULT = "<tool_response>"


def call(name: str, /, **arguments: Any) -> str:
    """Returns a call of a tool as models write it."""
    document = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{document}\n</tool_call>"


class ScriptedModel:
    """Makes engines whose model says ``turns[n]`` in a conversation of ``n`` results of tools.

    aside: what it says where no tools are offered, as when a title is asked for.
    """

    def __init__(self, bundle: Path, turns: Sequence[str], aside: str = "A task") -> None:
        self._tokenizer = Tokenizer.load(bundle / "tokenizer.json")
        (self._begin,) = self._tokenizer.encode_rendered("<|im_start|>", {})
        (self._end,) = self._tokenizer.encode_rendered("<|im_end|>", {})
        self._turns = [self._ids(turn) for turn in turns]
        self._aside = self._ids(aside)
        self._n_head = len(self._tokenizer.encode_rendered("<|im_start|>assistant\n", {}))
        self._said: dict[tuple[int, ...], list[int]] = {}

    def load(self, bundle: Path) -> Engine:
        """Returns an engine; ``bundle`` names it alone."""
        model = ToyModel(self._tokenizer.vocab_size, self._row)
        parts = MethodParts(CONTEXT, model.capabilities.hidden, DrafterParts())
        encoder = PromptEncoder(self._tokenizer, ChatTemplate(TEMPLATE))
        return Engine(LoadedModel(model, self._tokenizer, encoder, parts, (self._end,)))

    def _ids(self, text: str) -> list[int]:
        return [*self._tokenizer.encode(text), self._end]

    def _row(self, tokens: Sequence[int]) -> Any:
        """Returns logits by which what is said next is certain."""
        row = np.zeros(self._tokenizer.vocab_size, np.float32)
        place = len(tokens) - 1 - list(reversed(tokens)).index(self._begin)
        prompt = tuple(tokens[:place])
        if prompt not in self._said:
            self._said[prompt] = self._turn(self._tokenizer.decode(prompt))
        said = self._said[prompt]
        row[said[min(max(0, len(tokens) - place - self._n_head), len(said) - 1)]] = 20.0
        return row

    def _turn(self, conversation: str) -> list[int]:
        if "<tools>" not in conversation:
            return self._aside
        return self._turns[min(conversation.count(RESULT), len(self._turns) - 1)]
