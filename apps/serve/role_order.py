"""Conversations that a chat template refuses for the order of their roles, in other orders.

Agents put system messages between others, and send several messages of one role. Some templates
take one system message at the beginning alone, or none, and users and assistants in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from edgedec.apps.serve.core import Message
from edgedec.models.errors import PromptTooLongError, SessionError

T = TypeVar("T")


def written(write: Callable[[Sequence[Message]], T], messages: Sequence[Message]) -> T:
    """Returns what ``write`` makes of ``messages``, or of the first other order that it takes.

    Raises:
        SessionError: It takes none; the words are those for ``messages`` as they are.
    """
    try:
        return write(messages)
    except PromptTooLongError:
        raise
    except SessionError as error:
        refusal = error
    for order in _orders(messages):
        try:
            return write(order)
        except PromptTooLongError:
            raise
        except SessionError:
            continue
    raise refusal


def _orders(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Yields the messages in other orders, each further from how they came."""
    first = _with_one_system(messages)
    yield first
    in_turns = _in_turns(first)
    yield in_turns
    without = _in_turns(_without_system(first))
    yield without
    if without and without[0]["role"] == "assistant":
        yield [{"role": "user", "content": ""}, *without]


def _with_one_system(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages with the first system messages in one; later ones are the user's."""
    n = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
    head = _in_turns(messages[:n])
    return [*head, *(_as_user(message) for message in messages[n:])]


def _as_user(message: Message) -> Message:
    return {**message, "role": "user"} if message["role"] == "system" else message


def _without_system(messages: Sequence[Message]) -> list[Message]:
    return [_as_user(message) for message in messages]


def _in_turns(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages with those of one role that follow one another in one."""
    turns: list[Message] = []
    for message in messages:
        role = message["role"]
        if turns and turns[-1]["role"] == role and role != "tool":
            turns[-1] = _joined(turns[-1], message)
        else:
            turns.append(message)
    return turns


def _joined(message: Message, other: Message) -> Message:
    texts = [text for text in (message["content"], other["content"]) if text]
    joined: dict[str, Any] = {**message, **other, "content": "\n\n".join(texts)}
    calls = [*message.get("tool_calls", ()), *other.get("tool_calls", ())]
    return {**joined, "tool_calls": calls} if calls else joined
