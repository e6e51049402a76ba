"""Calls of tools as a chat template reads them: arguments as a mapping or as text, null or "".

Templates differ: one tells a call by ``content is none``, another fails there; one writes
``arguments | tojson``, another joins them as text. A call rendered in each form shows which of
them is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, takewhile
from typing import Any

from edgedec.models.errors import SessionError

THOUGHT_KEYS = ("reasoning_content", "thinking", "reasoning")
"""What messages call a thought."""

_NAME, _OTHER, _KEY, _VALUE = "sample_function", "other_function", "sample_key", "sample_value"
_CALLING = {"role": "assistant", "content": None}
_RESULT = {"role": "tool", "name": _NAME, "tool_call_id": "call00000", "content": "-"}
_MORE = ({**_RESULT, "name": _OTHER, "tool_call_id": "call00001"},)
_WRONG = ("None", "{'" + _KEY, '\\"' + _KEY)  # null or a mapping as Python writes it; text twice


@dataclass(frozen=True)
class CallForm:
    """How a message that calls tools is given to a template.

    takes_null, takes_empty: the template shows its calls where its content is null, or "".
    is_text: arguments are JSON text. takes_several: all calls of a message are shown.
    takes_thoughts: a message may hold a thought beside text and calls.
    """

    takes_null: bool = False
    takes_empty: bool = True
    is_text: bool = False
    takes_several: bool = True
    takes_thoughts: bool = True

    def of_all(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Returns ``messages`` in this form, with a message for each call where it has to be."""
        apart = messages if self.takes_several else _one_by_one(messages)
        return [self.of(message) for message in apart]

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
        if has_calls and shaped["content"] and not self.takes_thoughts:
            shaped = {key: value for key, value in shaped.items() if key not in THOUGHT_KEYS}
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
            content = "" if takes_empty else None
            thoughts = dict.fromkeys(THOUGHT_KEYS, "-")
            takes_thoughts = _shows(render, form, "-", following, **thoughts)
            takes_several = _shows(
                render, form, content, [*following, *_MORE[: len(following)]], (_NAME, _OTHER)
            )
            return CallForm(takes_null, takes_empty, is_text, takes_several, takes_thoughts)
    return CallForm()


def _shows(
    render: Callable[[Sequence[Mapping[str, Any]]], str],
    form: CallForm,
    content: str | None,
    following: Sequence[Mapping[str, Any]],
    names: Sequence[str] = (_NAME,),
    **more: str,
) -> bool:
    """Returns whether calls in this form are written whole, before the messages ``following``."""
    calls = [
        {
            "id": f"call0000{i}",
            "type": "function",
            "function": {"name": name, "arguments": {_KEY: f"{_VALUE}{i}"}},
        }
        for i, name in enumerate(names)
    ]
    answer = form.of({"role": "assistant", "content": content, **more, "tool_calls": calls})
    try:
        text = render([{"role": "user", "content": "-"}, answer, *following])
    except SessionError:
        return False
    words = [_KEY, *names, *(f"{_VALUE}{i}" for i in range(len(names)))]
    return all(word in text for word in words) and not any(wrong in text for wrong in _WRONG)


def _one_by_one(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yields a message for each call, with the result of that call behind it.

    The text of an answer stands before its first call. Results without a known call stay in order.
    """
    i = 0
    while i < len(messages):
        message, calls = messages[i], messages[i].get("tool_calls")
        i += 1
        if not isinstance(calls, list | tuple) or len(calls) < 2:
            yield message
            continue
        results = list(takewhile(lambda message: message["role"] == "tool", messages[i:]))
        i += len(results)
        for n, call in enumerate(calls):
            yield {**(message if n == 0 else _CALLING), "tool_calls": [call]}
            if (result := _result_of(call, results)) is not None:
                yield result
                results = [message for message in results if message is not result]
        yield from results


def _result_of(call: Any, results: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Returns the result of a call; results without ids are in the calls' order."""
    name = call.get("id") if isinstance(call, Mapping) else None
    named = next(
        (message for message in results if name and message.get("tool_call_id") == name), None
    )
    unnamed = (message for message in results if not message.get("tool_call_id"))
    return next(unnamed, None) if named is None else named
