"""Chat templates: rendering what a stranger wrote, and escaping what a user typed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self

from jinja2.meta import find_undeclared_variables

from edgedec.models.errors import SessionError
from edgedec.runtime.text.call_form import CallForm, find_call_form
from edgedec.runtime.text.template_sandbox import (
    MAX_TEMPLATE_WORK,
    WORK_PER_INPUT,
    TemplateSandbox,
)
from edgedec.runtime.text.thoughts import PAIRED_MARKS

_MAX_CHARACTERS = 1_000_000  # of a template
_FIXED = frozenset({"messages", "add_generation_prompt", "tools"})  # said by other means
_SAMPLE = "sample_content"
_FIRST_SUBSTITUTE, _LAST_SUBSTITUTE = 0xF0000, 0xFFFFD  # a private-use plane


class HiddenText(str):
    """A text whose special tokens are hidden, but for tests of what it holds or begins with."""

    _shown: str

    def __new__(cls, hidden: str, shown: str | None = None) -> Self:
        """Returns ``hidden``, which is tested as ``shown`` is, by default as itself."""
        made = super().__new__(cls, hidden)
        made._shown = hidden if shown is None else shown
        return made

    def __contains__(self, text: object) -> bool:
        return text in self._shown  # type: ignore[operator]

    def startswith(self, *args: Any) -> bool:
        """Returns whether the shown text begins so."""
        return self._shown.startswith(*args)

    def endswith(self, *args: Any) -> bool:
        """Returns whether the shown text ends so."""
        return self._shown.endswith(*args)

    def strip(self, *args: Any) -> str:
        """Returns the text without blanks at its ends; tests hold as before."""
        return HiddenText(super().strip(*args), self._shown.strip(*args))


HiddenText.__name__, HiddenText.__module__ = "str", "builtins"  # which errors of templates name


class SpecialTokenEscape:
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
        self._escaped = {
            escape(substitute)[1:-1].lower(): substitute
            for substitute in self._substitute.values()
            for escape in (repr, json.dumps)
        }

    def unescaped(self, text: str) -> str:
        """Returns ``text`` with characters in place of what Python and JSON write for them."""
        forms = "|".join(map(re.escape, self._escaped)) or r"(?!)"
        return re.sub(forms, lambda match: self._escaped[match[0].lower()], text, flags=re.I)

    def hide(self, text: str, kept: Sequence[str] = ()) -> str:
        """Returns ``text`` with no special token in it, nor at its ends the makings of one.

        kept: special tokens that stay.
        """
        places = [
            match.start()
            for match in self._occurrence.finditer(text)
            if not text.startswith(tuple(kept), match.start())
        ]
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

    def hide_message(self, message: Mapping[str, Any], kept: Sequence[str]) -> dict[str, Any]:
        """Returns ``message`` hidden but for its role, and for ``kept`` in an answer's content."""
        hidden = {**self.hide_all(message), "role": message["role"]}
        if isinstance(content := message["content"], str):
            is_answer = message["role"] == "assistant"
            hidden["content"] = HiddenText(self.hide(content, kept if is_answer else ()), content)
        return hidden

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

    def __init__(self, source: str, variables: Mapping[str, Any] | None = None) -> None:
        """variables: what the template may name besides the messages, such as ``bos_token``."""
        self._variables = dict(variables or {})
        if len(source) > _MAX_CHARACTERS:
            raise SessionError(
                f"the chat template has {len(source)} characters, expected at most "
                f"{_MAX_CHARACTERS}; pass plain text"
            )
        self._source = source
        sandbox = TemplateSandbox()
        self._fuel = sandbox.fuel
        with _one_line_errors():
            self._template = sandbox.from_string(source)
            self._names = find_undeclared_variables(sandbox.parse(source))

    @property
    def source(self) -> str:
        """The template as it was published."""
        return self._source

    @property
    def reads_tools(self) -> bool:
        """The template shows the tools it is given, so that the model knows of them."""
        return "tools" in self._names

    @cached_property
    def call_form(self) -> CallForm:
        """How the template reads messages that call tools."""
        return find_call_form(self.render)

    @property
    def thought_markers(self) -> tuple[str, ...]:
        """Markers of thoughts that the template names, to find them in earlier answers."""
        return tuple(marker for marker in PAIRED_MARKS if marker in self._source)

    def reads(self, variable: str) -> bool:
        """Returns whether the template reads ``variable``, which it does not set itself."""
        return variable in self._names

    def names(self, role: str) -> bool:
        """Returns whether the template mentions ``role``, in quotes."""
        return f"'{role}'" in self._source or f'"{role}"' in self._source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Returns the prompt text that asks for the next assistant message.

        tools: what the model may call, in OpenAI's form. variables: others that the template may
        read, such as ``enable_thinking``.

        Raises:
            SessionError: The template refuses the messages, fails, or makes too much of them.
        """
        self._check_names(variables)
        if self._reads_parts_only:
            messages = [_in_parts(message) for message in messages]
        return self._render(messages, tools, variables)

    @cached_property
    def _reads_parts_only(self) -> bool:
        """The template shows a content that is a list of parts, but none that is text."""
        plain = {"role": "user", "content": _SAMPLE}
        return not self._shows_sample(plain) and self._shows_sample(_in_parts(plain))

    def _shows_sample(self, message: Mapping[str, Any]) -> bool:
        try:
            return _SAMPLE in self._render([message], (), {})
        except SessionError:
            return False

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
    ) -> str:
        self._fuel.n_left = MAX_TEMPLATE_WORK + WORK_PER_INPUT * sum(
            map(len, texts_of([*messages, *tools, dict(variables)]))
        )
        with _one_line_errors():
            return self._template.render(
                messages=list(messages),
                add_generation_prompt=True,
                tools=list(tools) or None,
                **{"documents": None, **variables, **self._variables},
            )

    def _check_names(self, variables: Mapping[str, Any]) -> None:
        for name in variables:
            if name in _FIXED or name in self._variables:
                raise SessionError(
                    f"the chat template's variable {name!r} cannot be set: leave it out"
                )


class BrokenTemplate:
    """A template that does not compile: it keeps conversations out, and no plain text."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    @property
    def source(self) -> str:
        """Nothing of it can be read."""
        return ""

    @property
    def reads_tools(self) -> bool:
        """It reads nothing."""
        return False

    @property
    def call_form(self) -> CallForm:
        """Any will do."""
        return CallForm()

    @property
    def thought_markers(self) -> tuple[str, ...]:
        """It has none."""
        return ()

    def reads(self, variable: str) -> bool:
        """It may: rendering says what is wrong with it."""
        return True

    def names(self, role: str) -> bool:
        """It may: rendering says what is wrong with it."""
        return True

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Raises a SessionError that says why the template does not compile."""
        raise SessionError(self._reason)


def _in_parts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns ``message`` with its text as a list of parts."""
    if not isinstance(text := message.get("content"), str):
        return message
    return {**message, "content": [{"type": "text", "text": text}]}


def texts_of(value: Any) -> Iterator[str]:
    """Yields every text in nested lists and mappings."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from texts_of(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_of(item)


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
