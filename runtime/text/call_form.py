"""Calls of tools as a chat template reads them: arguments as a mapping or as text, null or "".

Templates differ: one tells a call by ``content is none``, another fails there; one writes
``arguments | tojson``, another joins them as text. A call rendered in each form shows which of
them is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from edgedec.models.errors import SessionError

_NAME, _KEY, _VALUE = "sample_function", "sample_key", "sample_value"
_RESULT = {"role": "tool", "name": _NAME, "tool_call_id": "call00000", "content": "-"}
_WRONG = ("None", "{'" + _KEY, '\\"' + _KEY)  # null or a mapping as Python writes it; text twice


@dataclass(frozen=True)
class CallForm:
    """How a message that calls tools is given to a template.

    takes_null, takes_empty: the template shows its calls where its content is null, or "".
    is_text: arguments are JSON text.
    """

    takes_null: bool = False
    takes_empty: bool = True
    is_text: bool = False

    def of(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Returns ``message`` in this form; null content without calls becomes empty."""
        calls = message.get("tool_calls")
        calls = calls if isinstance(calls, list | tuple) else ()
        has_calls = len(calls) > 0
        shaped = dict(message)
        if message.get("content") is None:
            shaped["content"] = None if has_calls and self.takes_null else ""
        elif message["content"] == "" and has_calls and not self.takes_empty:
            shaped["content"] = None
        if has_calls:
            shaped["tool_calls"] = [self._call(call) for call in calls]
        return shaped

    def _call(self, call: Any) -> Any:
        if not isinstance(call, Mapping):
            return call
        if isinstance(function := call.get("function"), Mapping):
            return {**call, "function": self._call(function)}
        if "arguments" not in call:
            return call
        return {**call, "arguments": self._arguments(call["arguments"])}

    def _arguments(self, arguments: Any) -> Any:
        if isinstance(arguments, Mapping):
            return json.dumps(arguments, ensure_ascii=False) if self.is_text else arguments
        if not isinstance(arguments, str) or self.is_text:
            return arguments
        try:
            parsed = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return arguments
        return parsed if isinstance(parsed, dict) else arguments


def find_call_form(render: Callable[[Sequence[Mapping[str, Any]]], str]) -> CallForm:
    """Returns the form in which ``render`` shows a call; the default where it shows none."""
    for following, is_text in product(([_RESULT], []), (False, True)):
        form = CallForm(True, True, is_text)
        takes_null, takes_empty = (
            _shows(render, form, content, following) for content in (None, "")
        )
        if takes_null or takes_empty:
            return CallForm(takes_null, takes_empty, is_text)
    return CallForm()


def _shows(
    render: Callable[[Sequence[Mapping[str, Any]]], str],
    form: CallForm,
    content: str | None,
    following: Sequence[Mapping[str, Any]],
) -> bool:
    """Returns whether a call in this form is written whole, before the messages ``following``."""
    function = {"name": _NAME, "arguments": {_KEY: _VALUE}}
    call = {"id": "call00000", "type": "function", "function": function}
    answer = form.of({"role": "assistant", "content": content, "tool_calls": [call]})
    try:
        text = render([{"role": "user", "content": "-"}, answer, *following])
    except SessionError:
        return False
    has_call = all(word in text for word in (_NAME, _KEY, _VALUE))
    return has_call and not any(wrong in text for wrong in _WRONG)
