"""OpenAI's older completions: `POST /v1/completions`, text or what is missing between two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from edgedec.apps.serve.api import openai, rows
from edgedec.apps.serve.api.endpoint import AnswerHead, Document, Endpoint, ParsedRequest
from edgedec.apps.serve.api.fields import (
    MaxTokens,
    NumChoices,
    NumLikeliest,
    Others,
    Sampling,
    TextPrompts,
    length_settings,
    read_body,
    text_prompts,
)
from edgedec.apps.serve.api.openai_chat import StreamOptions
from edgedec.apps.serve.core import (
    Answer,
    CoreRequest,
    Done,
    Event,
    InfillPrompt,
    Prompt,
    PromptProgress,
    TextDelta,
    TokenInfo,
    invalid,
)


class CompletionBody(Sampling):
    """The body of a request. max_tokens: 0 is for those who want the prompt's tokens alone."""

    others: ClassVar[Others] = rows.CHAT

    model: str = ""
    prompt: TextPrompts
    suffix: str | None = None
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: NumChoices | None = None
    max_tokens: MaxTokens | None = None
    logprobs: NumLikeliest | None = None
    origins: bool | None = None
    return_progress: bool | None = None


def read(data: bytes, reply: AnswerHead) -> ParsedRequest:
    """Returns what a body asks for.

    Raises:
        ServeError: The body makes no sense.
    """
    body = read_body(CompletionBody, data)
    n_most = 16 if body.max_tokens is None else body.max_tokens
    if n_most == 0 and not body.echo:
        raise invalid("max_tokens is 0, expected at least 1, or echo", param="max_tokens")
    settings = {**length_settings("max_tokens", n_most or 1), **body.settings()}
    if body.logprobs is not None:
        settings["logprobs"] = body.logprobs
    request = CoreRequest(
        body.model,
        _prompts(body),
        settings,
        body.n or 1,
        echo=bool(body.echo),
        is_silent=n_most == 0,
        with_origins=bool(body.origins),
        with_progress=bool(body.stream and body.return_progress),
    )
    head = {"id": f"cmpl-{reply.id}", "object": "text_completion", "created": reply.created}
    head["model"] = body.model
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    framer = CompletionFramer(head, with_usage, request.n) if body.stream else None
    return ParsedRequest(request, partial(_whole, head, request.n), framer)


def _prompts(body: CompletionBody) -> Sequence[Prompt]:
    if body.suffix is None:
        return text_prompts(body.prompt)
    if not isinstance(body.prompt, str) or body.echo:
        message = "suffix is given, which needs one prompt of text and no echo"
        raise invalid(message, param="suffix")
    return [InfillPrompt(body.prompt, body.suffix)]


def _whole(head: Document, n: int, answer: Answer) -> Document:
    choices = [
        {
            "index": index,
            "text": choice.text,
            "logprobs": _token_infos(choice.tokens),
            "finish_reason": choice.reason,
        }
        for index, choice in enumerate(answer.choices)
    ]
    counts = answer.counts
    times = {"usage": openai.usage(counts, n), "timings": openai.timings(counts[0])}
    return {**head, "choices": choices, **times}


def _token_infos(tokens: Sequence[TokenInfo], start: int = 0) -> Document | None:
    """Returns the log-probabilities of tokens; None where none were asked for.

    start: characters of the answer before them.
    """
    if not tokens:
        return None
    offsets = [start]
    for token in tokens[:-1]:
        offsets.append(offsets[-1] + len(token.chosen.text))
    return {
        "tokens": [token.chosen.text for token in tokens],
        "token_logprobs": [token.chosen.logprob for token in tokens],
        "top_logprobs": [_top(token) for token in tokens],
        "text_offset": offsets,
    }


def _top(token: TokenInfo) -> dict[str, Any] | None:
    if token.chosen.logprob is None:
        return None
    return {likely.text: likely.logprob for likely in token.top}


class CompletionFramer(openai.ChunkFramer):
    """Makes the chunks of a streamed answer."""

    def __init__(self, head: Document, with_usage: bool, n: int) -> None:
        super().__init__(head, with_usage, n)
        self._n_sent: dict[int, int] = {}  # characters of tokens, by answer

    def begin(self, n_prompt: int) -> Iterable[bytes]:
        """Returns nothing: every chunk has text."""
        return ()

    def of(self, event: Event) -> Iterable[bytes]:
        """Returns the chunk of an event."""
        if isinstance(event, TextDelta):
            said = {"text": event.text, **openai.origin_field(event.origin)}
            yield self.chunk(event.index, said, self._infos(event))
        elif isinstance(event, PromptProgress):
            yield self.chunk(event.index, {"text": ""}, more=openai.progress(event))
        elif isinstance(event, Done):
            yield self.last_chunk(event, {"text": ""})

    def _infos(self, event: TextDelta) -> Document | None:
        start = self._n_sent.get(event.index, 0)
        self._n_sent[event.index] = start + sum(len(token.chosen.text) for token in event.tokens)
        return _token_infos(event.tokens, start)


ENDPOINT = Endpoint("/v1/completions", CompletionBody, read, openai.error)
