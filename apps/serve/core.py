"""What all interfaces of the server translate to: a request, the events of its answer, problems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Message = Mapping[str, Any]
EndReason = Literal["stop", "length", "tool_calls", "cancelled"]
"""A stop token or text; no tokens left to spend; the model calls tools; the server shuts down."""


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation that the model's chat template writes."""

    messages: Sequence[Message]


@dataclass(frozen=True)
class TextPrompt:
    """Text as it is, or token ids."""

    text: str | Sequence[int]


Prompt = ChatPrompt | TextPrompt


@dataclass(frozen=True)
class CoreRequest:
    """What a client asks of a model.

    model: the name of an offered model; the first one where it is empty.
    settings: fields of `GenerationConfig`, as `GenerationConfig.from_dict` reads them, and of its
        ``sampling``; the bundle's recommendation holds for what is left out.
    n: answers to the one prompt.
    """

    model: str
    prompt: Prompt
    settings: Mapping[str, Any] = field(default_factory=dict)
    n: int = 1


@dataclass(frozen=True)
class Counts:
    """What one answer took.

    n_cached: tokens of the prompt that were computed before. prompt_ms: until the first token.
    decode_ms: from the first token to the last.
    """

    n_prompt: int
    n_cached: int
    n_new: int
    prompt_ms: float
    decode_ms: float
    n_drafted: int
    n_accepted: int
    method: str
    lossless: bool | str


@dataclass(frozen=True)
class TextDelta:
    """More text of answer ``index``."""

    index: int
    text: str


@dataclass(frozen=True)
class Done:
    """Answer ``index`` is complete."""

    index: int
    reason: EndReason
    counts: Counts


Event = TextDelta | Done


@dataclass
class Choice:
    """One complete answer."""

    text: str = ""
    reason: EndReason = "stop"
    counts: Counts | None = None


@dataclass(frozen=True)
class Answer:
    """All answers to one request."""

    choices: Sequence[Choice]

    @classmethod
    def of(cls, events: Iterable[Event], n: int) -> Answer:
        """Returns what ``events`` add up to."""
        choices = [Choice() for _ in range(n)]
        for event in events:
            choice = choices[event.index]
            if isinstance(event, TextDelta):
                choice.text += event.text
            else:
                choice.reason, choice.counts = event.reason, event.counts
        return cls(choices)

    @property
    def counts(self) -> list[Counts]:
        """What each answer took."""
        return [choice.counts for choice in self.choices if choice.counts is not None]


class ServeError(Exception):
    """What is wrong with a request, in words that its sender may read.

    status: of HTTP. kind: the type that clients match on. details: further fields of the error.
    """

    def __init__(self, status: int, kind: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.details = details


def invalid(message: str, **details: Any) -> ServeError:
    """Returns the problem that a request makes no sense."""
    return ServeError(400, "invalid_request_error", message, **details)
