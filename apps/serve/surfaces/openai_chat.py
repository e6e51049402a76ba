"""OpenAI's chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from pydantic import Field

from edgedec.apps.serve.core import (
    Answer,
    ChatPrompt,
    CoreRequest,
    Counts,
    Done,
    Event,
    ServeError,
    TextDelta,
    invalid,
)
from edgedec.apps.serve.surfaces import openai
from edgedec.apps.serve.surfaces.fields import MAX_CHOICES, Body, Sampling, read_body
from edgedec.apps.serve.surfaces.surface import Asked, Document, Reply, Surface


class Part(Body):
    """A part of a message's content."""

    type: str
    text: str | None = None


class ChatMessage(Body):
    """A message of the conversation."""

    role: str
    content: str | list[Part] | None = None


class StreamOptions(Body):
    """What a stream ends with."""

    include_usage: bool = False


class ChatBody(Sampling):
    """The body of a request."""

    model: str = ""
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)


def read(data: bytes, reply: Reply) -> Asked:
    """Returns what a body asks for.

    Raises:
        ServeError: The body makes no sense.
    """
    body = read_body(ChatBody, data)
    settings = body.settings()
    if (n_most := body.max_completion_tokens or body.max_tokens) is not None:
        settings["max_new_tokens"] = n_most
    prompt = ChatPrompt([_message(message) for message in body.messages])
    request = CoreRequest(body.model, prompt, settings, body.n or 1)
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    framer = ChatFramer(reply, body.model, with_usage, request.n) if body.stream else None
    return Asked(request, partial(whole, reply, body.model), framer)


def _message(message: ChatMessage) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": content_text(message.content)}


def content_text(content: str | list[Part] | None) -> str:
    """Returns the text of a message's content.

    Raises:
        ServeError: A part is no text.
    """
    if isinstance(content, str):
        return content
    parts = content or []
    if odd := [part.type for part in parts if part.text is None]:
        raise invalid(f"a part of type {odd[0]!r} has no text; this model reads text alone")
    return "".join(part.text or "" for part in parts)


def whole(reply: Reply, model: str, answer: Answer) -> Document:
    """Returns the document of an answer."""
    counts = answer.counts
    return {
        **_head(reply, model, "chat.completion"),
        "choices": [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text},
                "logprobs": None,
                "finish_reason": finish_reason(choice.reason),
            }
            for index, choice in enumerate(answer.choices)
        ],
        "usage": openai.usage(counts),
        "timings": openai.timings(counts[0]),
    }


class ChatFramer:
    """Makes the chunks of a streamed answer."""

    def __init__(self, reply: Reply, model: str, with_usage: bool, n: int) -> None:
        self._head = _head(reply, model, "chat.completion.chunk")
        self._with_usage = with_usage
        self._n = n
        self._counts: list[Counts] = []

    def begin(self) -> Iterable[bytes]:
        """Returns a chunk for each answer that tells whose turn it is."""
        for index in range(self._n):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def of(self, event: Event) -> Iterable[bytes]:
        """Returns the chunk of an event."""
        if isinstance(event, TextDelta):
            yield self._chunk(event.index, {"content": event.text})
        elif isinstance(event, Done):
            self._counts.append(event.counts)
            times = {"timings": openai.timings(event.counts)}
            yield self._chunk(event.index, {}, finish_reason(event.reason), times)

    def end(self) -> Iterable[bytes]:
        """Returns the usage, if it is wanted, and the mark of the end."""
        if self._with_usage:
            yield openai.sse({**self._head, "choices": [], "usage": openai.usage(self._counts)})
        yield openai.DONE

    def failed(self, problem: ServeError) -> Iterable[bytes]:
        """Returns a chunk that tells of the problem."""
        yield openai.sse(openai.error(problem))

    def _chunk(
        self,
        index: int,
        delta: Document,
        reason: str | None = None,
        more: Document | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return openai.sse({**self._head, "choices": [choice], **(more or {})})


def finish_reason(reason: str) -> str:
    """Returns OpenAI's word for why an answer ended."""
    return "stop" if reason == "cancelled" else reason


def _head(reply: Reply, model: str, kind: str) -> Document:
    return {"id": f"chatcmpl-{reply.id}", "object": kind, "created": reply.created, "model": model}


SURFACE = Surface("/v1/chat/completions", read, openai.error)
