"""What a caller may pass as a prompt, and the token ids it becomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from edgedec.models.errors import PromptTooLongError, SessionError
from edgedec.models.source_tokens import SourceText, is_source, source_tokens
from edgedec.runtime.text.call_form import THOUGHT_KEYS, CallForm
from edgedec.runtime.text.tokenizer import Codec, without_surrogates

if TYPE_CHECKING:  # `loading` knows when to import it
    from edgedec.runtime.text.chat_template import BrokenTemplate, ChatTemplate, SpecialTokenEscape
    from edgedec.runtime.text.thoughts import ThoughtFormat

Message = Mapping[str, Any]
"""A chat message: ``role`` and ``content``, and whatever else the model's template reads."""

Prompt = str | Sequence[Message] | Sequence[int]
"""Plain text, chat messages (rendered by the bundle's template), or token ids as they are."""


_BYTES = bytes | bytearray | memoryview  # sequences of numbers that are no token ids
_ROLES = ("system", "user", "assistant", "tool")
_TEXT_PARTS = ("text", "input_text", "output_text")  # as clients of chat and of responses say it
_PIECE = 1 << 15  # characters
_SLACK = 32  # tokens that a cut may add at most, by far


def is_conversation(prompt: Prompt) -> bool:
    """Returns whether ``prompt`` is messages, so that what follows is an answer."""
    return not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


@dataclass(frozen=True)
class Source:
    """How prompts become texts of an encoder-decoder model: a source, and what follows it.

    facts: of the bundle. vocab_size: of the model.
    """

    facts: SourceText
    vocab_size: int

    def of_text(self, ids: Sequence[int]) -> list[int]:
        """Returns the text whose source is a prompt of these ids, which ends like plain text."""
        closing = self.facts.closing_token_ids
        is_closed = bool(closing) and tuple(ids[-len(closing) :]) == closing
        return self.of_ids([*ids, *(() if is_closed else closing)])

    def of_ids(self, ids: Sequence[int]) -> list[int]:
        """Returns the text whose source is ``ids``; a text that has its source stays as it is."""
        if is_source(ids[0], self.vocab_size):
            return [*ids]
        if not 0 <= min(ids) <= max(ids) < self.vocab_size:
            raise SessionError(
                f"the prompt holds token {min(ids) if min(ids) < 0 else max(ids)}, expected 0 to "
                f"{self.vocab_size - 1}"
            )
        return [*source_tokens(ids, self.vocab_size), self.facts.start_token_id]


class PromptEncoder:
    """Turns prompts into token ids as the bundle's model expects them."""

    def __init__(
        self,
        codec: Codec,
        template: ChatTemplate | BrokenTemplate | None = None,
        opening: Sequence[int] = (),
        context: int | None = None,
        source: Source | None = None,
    ) -> None:
        """Makes an encoder.

        Args:
            opening: Tokens that plain text begins with.
            context: Most tokens that can be of use; longer texts are refused before they are read
                to their ends.
            source: How prompts become sources, of an encoder-decoder model.
        """
        self._source = source
        self._codec = codec
        self._context = context
        self._template = template
        self._opening = tuple(opening)

    @property
    def opening(self) -> tuple[int, ...]:
        """Tokens that plain text begins with."""
        return self._opening

    @property
    def has_template(self) -> bool:
        """Conversations can be written."""
        return self._template is not None

    @property
    def reads_tools(self) -> bool:
        """The chat template shows the model its tools."""
        return self._template is not None and self._template.reads_tools

    def reads(self, variable: str) -> bool:
        """Returns whether the chat template reads ``variable``."""
        return self._template is not None and self._template.reads(variable)

    @cached_property
    def thoughts(self) -> ThoughtFormat | None:
        """How the model marks its thoughts in answers; None without a chat template."""
        if self._template is None or self._source is not None:
            return None
        from edgedec.runtime.text.thoughts import find_thought_format

        return find_thought_format(self._template.source, self._codec.special_texts)

    @property
    def has_source(self) -> bool:
        """An encoder reads prompts, and what is written does not go on from their text."""
        return self._source is not None

    def without_limit(self) -> PromptEncoder:
        """Returns an encoder that reads texts of any length to their ends, to count them."""
        return PromptEncoder(self._codec, self._template, self._opening, None, self._source)

    def encode(
        self,
        prompt: Prompt,
        tools: Sequence[Message] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> list[int]:
        """Returns the ids of ``prompt``; with messages, the template is given the rest.

        Raises:
            SessionError: The prompt is empty, of no known kind, or refused by the template.
        """
        if isinstance(prompt, str):
            return self._encode_text(prompt)
        is_list = isinstance(prompt, Sequence) and not isinstance(prompt, _BYTES)
        items: list[Any] = list(prompt) if is_list else []
        if items and all(isinstance(item, Mapping) for item in items):
            return self.encode_conversation(items, tools, variables)[0]
        if items and all(isinstance(i, int) and not isinstance(i, bool) for i in items):
            return items if self._source is None else self._source.of_ids(items)
        raise SessionError(
            f"the prompt is {_shown(prompt)}, expected text, chat messages (mappings with role and "
            "content) or token ids, at least one"
        )

    def _encode_text(self, text: str) -> list[int]:
        self._check_length([text])
        ids = [*self._opening, *self._codec.encode(text)]
        if not ids:
            raise SessionError(
                "the prompt is empty and this model has no start token: pass at least one character"
            )
        return ids if self._source is None else self._source.of_text(ids)

    def encode_marks(self, text: str) -> list[int]:
        """Returns the ids of text in which special tokens are meant, as in a template's own."""
        return self._codec.encode_rendered(text, {})

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Returns the text that the chat template makes of ``messages``.

        variables: others that the template may read.

        Raises:
            SessionError: There is no template, or it refuses the messages.
        """
        text, escape = self._rendered(messages, tools, variables)
        return text.translate(escape.restore)

    def encode_conversation(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[list[int], str]:
        """Returns the ids of ``messages``, and the text that the chat template makes of them.

        variables: others that the template may read.

        Raises:
            SessionError: There is no template, or it refuses the messages, or there are none.
        """
        if not messages:
            raise SessionError("there are no chat messages, expected at least one")
        text, escape = self._rendered(messages, tools, variables)
        ids = self._codec.encode_rendered(text, escape.restore)
        if not ids:
            raise SessionError("the chat template renders these messages to nothing")
        if self._source is not None:
            ids = self._source.of_text(ids)
        return ids, text.translate(escape.restore)

    def _rendered(
        self, items: Sequence[Any], tools: Sequence[Message], variables: Mapping[str, Any]
    ) -> tuple[str, SpecialTokenEscape]:
        """Returns the text of messages, in which special tokens are the template's own."""
        if self._template is None:
            raise SessionError(
                "this bundle has no chat template: pass the prompt as plain text instead of "
                "messages"
            )
        from edgedec.runtime.text.chat_template import SpecialTokenEscape, texts_of

        messages = [checked_message(message) for message in items]
        for role in {message["role"] for message in messages}.difference(_ROLES):
            if not self._template.names(role):
                raise SessionError(
                    f"a message's role is {role!r}, which this model's chat template does not "
                    f"know: use {', '.join(_ROLES[:-1])} or {_ROLES[-1]}"
                )
        has_calls = any(message.get("tool_calls") for message in messages)
        form = self._template.call_form if has_calls else CallForm()
        source = self._template.source
        messages = form.of_all([_with_thought(message, source) for message in messages])
        texts = list(texts_of([*messages, *tools, dict(variables)]))
        self._check_length(texts)
        escape = SpecialTokenEscape(self._codec.special_texts, texts)
        kept = self._template.thought_markers
        escaped = [escape.hide_message(message, kept) for message in messages]
        hidden = escape.hide_all(list(tools)), escape.hide_all(dict(variables))
        return escape.unescaped(self._template.render(escaped, *hidden)), escape

    def _check_length(self, texts: Iterable[str]) -> None:
        """Refuses what is too long by far without encoding all of it, which takes a while.

        Encoded piece by piece, a text has a few more tokens at every cut, and Ctrl-C works.
        """
        n_tokens = 0
        for text in texts:
            if self._context is None or len(text) <= _PIECE:
                continue
            for start in range(0, len(text), _PIECE):
                n_tokens += len(self._codec.encode(text[start : start + _PIECE])) - _SLACK
                if n_tokens > self._context:
                    raise PromptTooLongError(n_tokens, self._context, is_whole=False)


def checked_message(message: Message) -> dict[str, Any]:
    """Returns ``message`` with its parts of text joined, and without keys that are null.

    Raises:
        SessionError: It is no chat message, or has content other than text.
    """
    if not isinstance(message, Mapping):
        raise SessionError(
            f"a message is {_shown(message)}, expected a mapping with role and content"
        )
    if odd := [key for key in message if not isinstance(key, str)]:
        raise SessionError(f"a message has the key {_shown(odd[0])}, expected text such as 'role'")
    role = message.get("role")
    if not isinstance(role, str) or not role.replace("-", "_").isidentifier():
        raise SessionError(
            f"a message's role is {_shown(role)}, expected a word such as 'user' or 'assistant'"
        )
    if "content" not in message and role != "assistant":
        raise SessionError(f"a message of role {role!r} has no content")
    content = message.get("content")  # an answer that only calls tools has none
    filled = {key: _clean(value) for key, value in message.items() if value is not None}
    checked = {**filled, "content": _clean(content)}
    if isinstance(content, list | tuple):
        return {**checked, "content": "".join(_part_text(part) for part in content)}
    if not isinstance(content, str | None):
        raise SessionError(
            f"the content of a message of role {role!r} is {_shown(content)}, expected "
            "text, or a list of parts such as {'type': 'text', 'text': 'Hello'}"
        )
    return checked


def _with_thought(message: dict[str, Any], template: str) -> dict[str, Any]:
    """Returns ``message`` with its thought under the name that ``template`` reads."""
    thoughts = (message.get(name) for name in THOUGHT_KEYS)
    thought = next((text for text in thoughts if isinstance(text, str) and text), "")
    if not thought:
        return message
    read = {name: thought for name in THOUGHT_KEYS if name in template}
    return {**message, **{name: text for name, text in read.items() if not message.get(name)}}


def _part_text(part: Any) -> str:
    """Returns the text of one part of a message's content."""
    if isinstance(part, Mapping) and part.get("type", "text") in _TEXT_PARTS:
        if isinstance(text := part.get("text"), str):
            return without_surrogates(text)
    elif isinstance(part, Mapping) and isinstance(kind := part.get("type"), str):
        raise SessionError(
            f"a part of a message is of type {kind!r}, but edgedec reads text only: leave it out"
        )
    raise SessionError(
        f"a part of a message is {_shown(part)}, expected {{'type': 'text', 'text': 'Hello'}}"
    )


def _clean(value: Any) -> Any:
    return without_surrogates(value) if isinstance(value, str) else value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
