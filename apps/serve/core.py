"""What all interfaces of the server translate to: a request, the events of its answer, problems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Message = Mapping[str, Any]
EndReason = Literal["stop", "length", "tool_calls"]
"""A stop token or text; no tokens left to spend; the model calls tools."""

AUTO, NONE, REQUIRED = "auto", "none", "required"


@dataclass(frozen=True)
class Tool:
    """A function that the model may call. parameters: the JSON schema of its arguments."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation that the model's chat template writes.

    messages: in OpenAI's form; the arguments of calls are mappings.
    choice: auto, required, or the name of the one tool to call. is_parallel: several calls may
        come in one answer.
    variables: what the template may read besides, such as ``enable_thinking``.
    is_continued: a last message of the assistant is the beginning of the answer.
    thought_budget: most tokens of thoughts; None is no limit.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    choice: str = AUTO
    is_parallel: bool = True
    variables: Mapping[str, Any] = field(default_factory=dict)
    is_continued: bool = True
    thought_budget: int | None = None

    @property
    def begun(self) -> str:
        """The text that the answer begins with, of an assistant's last message."""
        last = self.messages[-1] if self.messages else {}
        is_begun = self.is_continued and len(self.messages) > 1
        if not is_begun or last["role"] != "assistant" or last.get("tool_calls"):
            return ""
        return str(last.get("content") or "").rstrip()


@dataclass(frozen=True)
class TextPrompt:
    """Text as it is, or token ids."""

    text: str | Sequence[int]


@dataclass(frozen=True)
class InfillPrompt:
    """What is missing between two texts. begun: text that it begins with.

    others: names and texts of other files that the model is to know.
    """

    before: str
    after: str
    begun: str = ""
    others: Sequence[tuple[str, str]] = ()


Prompt = ChatPrompt | TextPrompt | InfillPrompt


@dataclass(frozen=True)
class LineLimits:
    """What ends an answer behind its first line, by llama-server's rules.

    predict_ms: time since the first text; once a line is complete, the answer ends when it is
        over. n_indent: blanks and tabs that each further line begins with; one that has fewer ends
        the answer. 0 is no limit.
    """

    predict_ms: float = 0
    n_indent: int = 0


@dataclass(frozen=True)
class CoreRequest:
    """What a client asks of a model.

    model: the name of an offered model; the first one where it is empty.
    settings: fields of `GenerationConfig`, as `GenerationConfig.from_dict` reads them, and of its
        ``sampling``; the bundle's recommendation holds for what is left out. ``chain`` is a
        `SamplerChain`.
    n: answers to each prompt.
    echo: each answer begins with its prompt. is_silent: and ends with it.
    with_origins: pieces of text say who wrote them.
    with_progress: events say how much of the prompt is read.
    lines: ends answers behind a line, as clients of llama-server ask for.
    keep_alive_s: how long the model stays loaded afterwards; negative for ever, None as usual.
    """

    model: str
    prompts: Sequence[Prompt]
    settings: Mapping[str, Any] = field(default_factory=dict)
    n: int = 1
    echo: bool = False
    is_silent: bool = False
    with_origins: bool = False
    with_progress: bool = False
    lines: LineLimits | None = None
    keep_alive_s: float | None = None

    @property
    def n_answers(self) -> int:
        """How many answers there are in all: those to the first prompt, then to the next."""
        return len(self.prompts) * self.n


@dataclass(frozen=True)
class Counts:
    """What one answer took.

    n_cached: tokens of the prompt that were computed before. prompt_ms: until the first token.
    decode_ms: from the first token to the last. n_reasoning: new tokens of thoughts.
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
    n_reasoning: int = 0


@dataclass(frozen=True)
class Likely:
    """A token and its log-probability; None where nothing comes before it. Units: nats.

    spelling: its bytes, which need be no whole characters.
    """

    text: str
    token: int
    logprob: float | None
    spelling: bytes = b""


@dataclass(frozen=True)
class TokenInfo:
    """A token of an answer, and the likeliest ones at its place.

    n_characters: that it completes in the answer's text.
    """

    chosen: Likely
    top: Sequence[Likely]
    n_characters: int = 0


@dataclass(frozen=True)
class TextDelta:
    """More text of answer ``index``.

    tokens: those since the text before, if asked for. origin: who wrote it, the target model or a
    drafter; empty where nobody asked.
    """

    index: int
    text: str
    tokens: Sequence[TokenInfo] = ()
    origin: str = ""


@dataclass(frozen=True)
class ReasoningDelta:
    """More of what the model thinks before answer ``index``."""

    index: int
    text: str


@dataclass(frozen=True)
class CallDelta:
    """More of a tool call. id, name: with the first piece of the call alone.

    call: which of the answer's calls, from 0. arguments: more of their JSON text.
    """

    index: int
    call: int
    arguments: str = ""
    id: str = ""
    name: str = ""


@dataclass(frozen=True)
class PromptProgress:
    """How much of the prompt of answer ``index`` is read. Units: tokens, all from its beginning.

    n_cached: computed before the request. ms: since reading began.
    """

    index: int
    n_prompt: int
    n_cached: int
    n_read: int
    ms: float


@dataclass(frozen=True)
class Done:
    """Answer ``index`` is complete. stop_text: what ended it, if that was a stop text."""

    index: int
    reason: EndReason
    counts: Counts
    stop_text: str = ""


Event = TextDelta | ReasoningDelta | CallDelta | PromptProgress | Done


@dataclass
class Call:
    """A complete tool call. arguments: JSON text."""

    id: str
    name: str
    arguments: str = ""


@dataclass
class Choice:
    """One complete answer."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    tokens: list[TokenInfo] = field(default_factory=list)
    reason: EndReason = "stop"
    counts: Counts | None = None
    stop_text: str = ""

    def add(self, event: Event) -> None:
        """Takes in what happened."""
        if isinstance(event, TextDelta):
            self.text += event.text
            self.tokens += event.tokens
        elif isinstance(event, ReasoningDelta):
            self.reasoning += event.text
        elif isinstance(event, CallDelta):
            if event.id:
                self.calls.append(Call(event.id, event.name))
            self.calls[event.call].arguments += event.arguments
        elif isinstance(event, Done):
            self.reason, self.counts = event.reason, event.counts
            self.stop_text = event.stop_text


@dataclass(frozen=True)
class Answer:
    """All answers to one request."""

    choices: Sequence[Choice]

    @classmethod
    def of(cls, events: Iterable[Event], n: int) -> Answer:
        """Returns what ``events`` add up to."""
        choices = [Choice() for _ in range(n)]
        for event in events:
            choices[event.index].add(event)
        return cls(choices)

    @property
    def ends(self) -> list[Done]:
        """How each answer ended."""
        return [
            Done(index, choice.reason, choice.counts, choice.stop_text)
            for index, choice in enumerate(self.choices)
            if choice.counts is not None
        ]

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
