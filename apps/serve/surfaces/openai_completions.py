"""OpenAI's older completions: `POST /v1/completions`, text or what is missing between two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from pydantic import Field

from edgedec.apps.serve.core import (
    Answer,
    CoreRequest,
    Counts,
    Done,
    Event,
    InfillPrompt,
    Prompt,
    ServeError,
    TextDelta,
    TextPrompt,
    TokenInfo,
    invalid,
)
from edgedec.apps.serve.surfaces import openai
from edgedec.apps.serve.surfaces.fields import MAX_CHOICES, Sampling, read_body
from edgedec.apps.serve.surfaces.openai_chat import StreamOptions
from edgedec.apps.serve.surfaces.surface import Asked, Document, Reply, Surface


class CompletionBody(Sampling):
    """The body of a request."""

    model: str = ""
    prompt: str | list[str] | list[int]
    suffix: str | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(default=None, ge=1)
    logprobs: int | None = Field(default=None, ge=0, le=20)


def read(data: bytes, reply: Reply) -> Asked:
    """Returns what a body asks for.

    Raises:
        ServeError: The body makes no sense.
    """
    body = read_body(CompletionBody, data)
    settings = {"max_new_tokens": body.max_tokens or 16, **body.settings()}
    if body.logprobs is not None:
        settings["logprobs"] = body.logprobs
    request = CoreRequest(body.model, _prompt(body), settings, body.n or 1)
    head = {"id": f"cmpl-{reply.id}", "object": "text_completion", "created": reply.created}
    head["model"] = body.model
    echoed = _echoed(body) if body.echo else ""
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    framer = CompletionFramer(head, echoed, with_usage, request.n) if body.stream else None
    return Asked(request, partial(_whole, head, echoed), framer)


def _prompt(body: CompletionBody) -> Prompt:
    prompt: Any = body.prompt
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
        if len(prompt) > 1:
            raise invalid(f"{len(prompt)} prompts are given, expected one", param="prompt")
        prompt = prompt[0]
    if body.suffix is None:
        return TextPrompt(prompt)
    if not isinstance(prompt, str):
        raise invalid("suffix is given, which needs a prompt of text", param="suffix")
    return InfillPrompt(prompt, body.suffix)


def _echoed(body: CompletionBody) -> str:
    prompt = body.prompt if isinstance(body.prompt, str) else body.prompt[0]
    if body.logprobs is not None or not isinstance(prompt, str):
        message = "echo is given, which needs a prompt of text and no logprobs"
        raise invalid(message, param="echo")
    return prompt


def _whole(head: Document, echoed: str, answer: Answer) -> Document:
    choices = [
        {
            "index": index,
            "text": echoed + choice.text,
            "logprobs": _token_infos(choice.tokens),
            "finish_reason": choice.reason,
        }
        for index, choice in enumerate(answer.choices)
    ]
    counts = answer.counts
    times = {"usage": openai.usage(counts), "timings": openai.timings(counts[0])}
    return {**head, "choices": choices, **times}


def _token_infos(tokens: Sequence[TokenInfo]) -> Document | None:
    if not tokens:
        return None
    return {
        "tokens": [token.own.text for token in tokens],
        "token_logprobs": [token.own.logprob for token in tokens],
        "top_logprobs": [{one.text: one.logprob for one in token.top} for token in tokens],
    }


class CompletionFramer:
    """Makes the chunks of a streamed answer."""

    def __init__(self, head: Document, echoed: str, with_usage: bool, n: int) -> None:
        self._head = head
        self._echoed = echoed
        self._with_usage = with_usage
        self._n = n
        self._counts: list[Counts] = []

    def begin(self) -> Iterable[bytes]:
        """Returns the prompt, if it is to be echoed."""
        if self._echoed:
            for index in range(self._n):
                yield self._chunk(index, self._echoed)

    def of(self, event: Event) -> Iterable[bytes]:
        """Returns the chunk of an event."""
        if isinstance(event, TextDelta):
            yield self._chunk(event.index, event.text, tokens=event.tokens)
        elif isinstance(event, Done):
            self._counts.append(event.counts)
            times = {"timings": openai.timings(event.counts)}
            yield self._chunk(event.index, "", event.reason, times)

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
        text: str,
        reason: str | None = None,
        more: Document | None = None,
        tokens: Sequence[TokenInfo] = (),
    ) -> bytes:
        told = {"logprobs": _token_infos(tokens), "finish_reason": reason}
        choice = {"index": index, "text": text, **told}
        return openai.sse({**self._head, "choices": [choice], **(more or {})})


SURFACE = Surface("/v1/completions", read, openai.error)
