"""Chat templates: rendering what a stranger wrote, and guarding what a user typed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgedec.models.errors import SessionError

MAX_TEMPLATE_STEPS = 2_000_000
"""Lines a template may execute. A conversation of a thousand messages takes some 10**4."""

_MAX_OPERAND = 1_000_000
_FIRST_SUBSTITUTE, _LAST_SUBSTITUTE = 0xF0000, 0xFFFFD  # a private-use plane


class Guard:
    """Hides special-token text inside user text while a template is rendered.

    One character of each occurrence is replaced by a private-use character that occurs nowhere in
    the request. So is a piece of a special token at either end of a text, which the template's own
    text could complete. Whatever special token the rendered text shows is the template's.
    """

    def __init__(self, special_texts: Sequence[str], texts: Iterable[str]) -> None:
        self._special = [text for text in special_texts if text.strip()]
        alternatives = "|".join(map(re.escape, self._special)) or r"(?!)"
        self._occurrence = re.compile(f"(?={alternatives})")
        characters = sorted(set("".join(self._special)))
        used = set().union(*texts, characters)
        free = (c for c in range(_FIRST_SUBSTITUTE, _LAST_SUBSTITUTE) if chr(c) not in used)
        self._substitute = {character: chr(next(free)) for character in characters}
        self.restore: Mapping[int, str] = {ord(s): c for c, s in self._substitute.items()}

    def hide(self, text: str) -> str:
        """Returns ``text`` with no special token in it, nor at its ends the makings of one."""
        places = [match.start() for match in self._occurrence.finditer(text)]
        body = text.strip()  # templates may trim
        start = text.find(body)
        for special in self._special:
            if n_end := _overlap(body, special[:-1]):
                places.append(start + len(body) - n_end)
            if _overlap(special[1:], body):
                places.append(start)
        characters = list(text)
        for i in places:
            while characters[i].isspace():  # a trimmed substitute would protect nothing
                i += 1
            characters[i] = self._substitute.get(characters[i], characters[i])
        return "".join(characters)

    def hide_all(self, value: Any) -> Any:
        """Returns ``value`` with every text in its lists and mappings hidden."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {key: self.hide_all(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide_all(item) for item in value]
        return value


class ChatTemplate:
    """A Jinja template that turns messages into one prompt text."""

    def __init__(self, source: str, variables: Mapping[str, str] | None = None) -> None:
        """variables: what the template may name besides the messages, such as ``bos_token``."""
        self._variables = dict(variables or {})
        with _one_line_errors():
            self._template = _Environment().from_string(source)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Returns the prompt text that asks for the next assistant message.

        Raises:
            SessionError: The template refuses the messages, fails, or runs away.
        """
        with _one_line_errors(), _bounded_steps():
            return self._template.render(
                messages=list(messages),
                add_generation_prompt=True,
                tools=None,
                documents=None,
                **self._variables,
            )


def texts_of(value: Any) -> Iterator[str]:
    """Yields every text in nested lists and mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from texts_of(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_of(item)


class _Environment(ImmutableSandboxedEnvironment):
    """The dialect that transformers' ``apply_chat_template`` speaks, sandboxed.

    Source: transformers ``utils/chat_template_utils.py``, Apache-2.0.
    """

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [abs(v) if isinstance(v, int) else len(v) for v in (left, right) if _sized(v)]
        if any(size > _MAX_OPERAND for size in sizes) or (
            operator == "**" and max(sizes, default=0) > 64
        ):
            raise SecurityError(f"operand of {operator!r} is too large")
        return super().call_binop(context, operator, left, right)


def _sized(value: Any) -> bool:
    return isinstance(value, int | str | list | tuple)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which a model would read as text.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _overlap(left: str, right: str) -> int:
    """Returns the length of the longest prefix of ``right`` that ends ``left``."""
    longest = min(len(left), len(right))
    return next((n for n in range(longest, 0, -1) if left.endswith(right[:n])), 0)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise SessionError("the chat template recurses without end; pass plain text") from None
    except Exception as error:  # a template may raise anything Python can
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise SessionError(f"the chat template failed: {reason}") from None


@contextmanager
def _bounded_steps() -> Iterator[None]:
    """Stops a template that executes more than `MAX_TEMPLATE_STEPS` lines.

    The sandbox bounds one range, not loops inside loops nor macros that call themselves twice;
    counting executed lines bounds them all.
    """
    n_left = MAX_TEMPLATE_STEPS
    outer = sys.gettrace()

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal n_left
        n_left -= 1
        if n_left < 0:
            raise SecurityError(
                f"it runs over {MAX_TEMPLATE_STEPS} steps; pass plain text or mend the template"
            )
        return count

    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(outer)
