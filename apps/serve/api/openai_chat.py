"""OpenAI's chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from pydantic import Field

from edgedec.apps.serve.api import openai, rows
from edgedec.apps.serve.api.endpoint import AnswerHead, Document, Endpoint, ParsedRequest
from edgedec.apps.serve.api.fields import (
    Body,
    MaxTokens,
    NumChoices,
    NumLikeliest,
    Others,
    Role,
    Sampling,
    Text,
    call_arguments,
    harmless,
    length_settings,
    read_body,
)
from edgedec.apps.serve.api.thinking import Continuing, Thinking
from edgedec.apps.serve.core import (
    AUTO,
    REQUIRED,
    Answer,
    Call,
    CallDelta,
    ChatPrompt,
    Choice,
    CoreRequest,
    Event,
    PromptProgress,
    ReasoningDelta,
    TextDelta,
    TokenInfo,
    Tool,
    invalid,
)

_ROLES = {"developer": "system", "function": "tool"}

_TEXTS = ("text", "input_text", "output_text", "refusal")
"""Parts whose text may be null."""


class Part(Body):
    """A part of a message's content."""

    others: ClassVar[Others] = rows.MARKS

    type: str
    text: str | None = None
    refusal: str | None = None


class Function(Body):
    """A function that was called. arguments: JSON text, or whatever an earlier turn left."""

    others: ClassVar[Others] = rows.MARKS

    name: Text = ""
    arguments: Any = ""


class CustomCall(Body):
    """A call of a tool that reads text."""

    others: ClassVar[Others] = rows.MARKS

    name: Text = ""
    input: Any = ""


class ToolCall(Body):
    """A call that an earlier answer made."""

    others: ClassVar[Others] = {**rows.MARKS, **harmless("type extra_content")}

    id: Text = ""
    function: Function | None = None
    custom: CustomCall | None = None


class ChatMessage(Body):
    """A message of the conversation."""

    others: ClassVar[Others] = {**rows.MARKS, **harmless("id type")}

    role: Role
    content: str | list[Part] | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None
    refusal: str | None = None
    tool_call_id: str | None = None
    name: str | None = None


class FunctionTool(Body):
    """A function that may be called."""

    others: ClassVar[Others] = rows.TOOLS

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class AnyTool(Body):
    """A tool; those that are no functions are left out."""

    others: ClassVar[Others] = {**rows.TOOLS, **harmless("custom name description parameters")}

    type: str = "function"
    function: FunctionTool | None = None


def offered_tools(tools: Sequence[AnyTool] | None) -> list[Tool]:
    """Returns the functions among ``tools``.

    Raises:
        ServeError: A tool says that it is a function, and has none; as if it were for responses.
    """
    for i, tool in enumerate(tools or ()):
        if tool.type == "function" and tool.function is None:
            message = f"tools.{i} has no function, expected its name and parameters in that field"
            raise invalid(message, param=f"tools.{i}.function")
    functions = [tool.function for tool in tools or () if tool.function is not None]
    return [Tool(f.name, f.description or "", f.parameters or {}) for f in functions]


class ChosenFunction(Body):
    """The function to call."""

    others: ClassVar[Others] = harmless("type")

    name: str


class ChosenTool(Body):
    """A tool that may be called."""

    others: ClassVar[Others] = rows.TOOLS

    type: str = "function"
    function: ChosenFunction | None = None


class AllowedTools(Body):
    """Those that may be called, and whether one has to be."""

    mode: str = AUTO
    tools: list[ChosenTool]


class NamedChoice(Body):
    """The one tool to call, or those that may be."""

    others: ClassVar[Others] = harmless("type")

    function: ChosenFunction | None = None
    allowed_tools: AllowedTools | None = None

    def of(self, tools: Sequence[Tool]) -> tuple[list[Tool], str]:
        """Returns those of ``tools`` that may be called, and the choice among them.

        Raises:
            ServeError: Nothing is chosen, or a tool that is not there.
        """
        if self.function is not None:
            return list(tools), self.function.name
        if self.allowed_tools is None:
            message = "tool_choice has neither function nor allowed_tools"
            raise invalid(message, param="tool_choice")
        names = [tool.function.name for tool in self.allowed_tools.tools if tool.function]
        return allowed(tools, names, self.allowed_tools.mode)


class Schema(Body):
    """The schema of a response format."""

    others: ClassVar[Others] = harmless("name description strict")

    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class ResponseFormat(Body):
    """What an answer has to look like."""

    others: ClassVar[Others] = harmless("name description strict")

    type: str
    json_schema: Schema | None = None
    json_schema_alone: dict[str, Any] | None = Field(default=None, alias="schema")


class StreamOptions(Body):
    """What a stream ends with."""

    others: ClassVar[Others] = harmless("include_obfuscation continuous_usage_stats")

    include_usage: bool = False


class Prediction(Body):
    """A text that the answer is likely to repeat."""

    others: ClassVar[Others] = harmless("type")

    content: str | list[Part]


class ChatBody(Thinking, Continuing, Sampling):
    """The body of a request."""

    others: ClassVar[Others] = rows.CHAT

    model: str = ""
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: NumChoices | None = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    logprobs: bool | None = None
    top_logprobs: NumLikeliest | None = None
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None
    tools: list[AnyTool] | None = None
    tool_choice: str | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    origins: bool | None = None
    return_progress: bool | None = None


def read(data: bytes, reply: AnswerHead) -> ParsedRequest:
    """Returns what a body asks for.

    Raises:
        ServeError: The body makes no sense.
    """
    body = read_body(ChatBody, data)
    settings = body.settings()
    n_most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    settings.update(length_settings("max_tokens", n_most))
    if body.logprobs:
        settings["logprobs"] = body.top_logprobs or 0
    if body.response_format is not None:
        settings.update(format_settings(body.response_format))
    if body.prediction is not None:
        settings["prediction"] = content_text(body.prediction.content, False)
    request = CoreRequest(
        body.model,
        [chat_prompt(body)],
        settings,
        body.n or 1,
        with_origins=bool(body.origins),
        with_progress=bool(body.stream and body.return_progress),
    )
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    head = _head(reply, body.model, "chat.completion.chunk")
    framer = ChatFramer(head, with_usage, request.n) if body.stream else None
    return ParsedRequest(request, partial(whole, reply, body.model), framer)


def chat_prompt(body: ChatBody) -> ChatPrompt:
    """Returns the conversation of a body."""
    tools = offered_tools(body.tools)
    choice = body.tool_choice or AUTO
    if not isinstance(choice, str):
        tools, choice = choice.of(tools)
    is_parallel = body.parallel_tool_calls
    return ChatPrompt(
        [chat_message(message) for message in body.messages],
        tools,
        choice,
        choice == AUTO if is_parallel is None else is_parallel,
        body.variables(),
        body.is_continued,
        body.thought_budget,
    )


def allowed(
    tools: Sequence[Tool], names: Sequence[str], mode: str | None
) -> tuple[list[Tool], str]:
    """Returns those of ``tools`` that are named, and the choice among them.

    Raises:
        ServeError: A name is that of no tool, or ``mode`` that of no choice.
    """
    if mode not in (AUTO, REQUIRED, None):
        message = f"the mode of allowed_tools is {mode[:40]!r}, expected {AUTO} or {REQUIRED}"
        raise invalid(message, param="tool_choice")
    known = {tool.name for tool in tools}
    if odd := [name for name in names if name not in known]:
        message = f"tool_choice names {odd[0][:60]!r}, which is none of the tools"
        raise invalid(message, param="tool_choice")
    return [tool for tool in tools if tool.name in names], mode or AUTO


def format_settings(form: ResponseFormat) -> dict[str, Any]:
    """Returns the settings that a response format means.

    Raises:
        ServeError: Nobody knows it.
    """
    if form.type == "text":
        return {}
    schema = form.json_schema_alone
    if form.type == "json_schema":
        if form.json_schema is not None:
            schema = form.json_schema.json_schema
        if schema is None:
            raise invalid("response_format has no schema", param="response_format")
    elif form.type != "json_object":
        known = "text, json_object, json_schema"
        message = f"response_format is {form.type[:40]!r}, expected {known}"
        raise invalid(message, param="response_format")
    return {"json_schema": schema or {"type": "object"}}


def chat_message(message: ChatMessage) -> dict[str, Any]:
    """Returns a message as templates read it."""
    role = _ROLES.get(message.role, message.role)
    is_earlier = role == "assistant"
    text = content_text(message.content, is_earlier) or message.refusal or ""
    turn: dict[str, Any] = {"role": role, "content": text}
    calls = [_earlier_call(call) for call in message.tool_calls or ()]
    if message.function_call is not None:
        calls.append(_call_of("", message.function_call))
    if calls:
        turn["tool_calls"] = calls
    for name in ("tool_call_id", "name"):
        if (value := getattr(message, name)) is not None:
            turn[name] = value
    return turn


def _earlier_call(call: ToolCall) -> dict[str, Any]:
    if call.custom is not None:
        function = Function(name=call.custom.name, arguments={"input": call.custom.input})
        return _call_of(call.id, function)
    return _call_of(call.id, call.function or Function())


def _call_of(identity: str, function: Function) -> dict[str, Any]:
    called = {"name": function.name, "arguments": call_arguments(function.arguments)}
    return {"id": identity, "type": "function", "function": called}


def content_text(content: str | list[Part] | None, is_earlier: bool = False) -> str:
    """Returns the text of a message's content.

    is_earlier: It is an answer: thoughts, and what other servers add, are left out.

    Raises:
        ServeError: A part is no text.
    """
    if isinstance(content, str):
        return content
    texts = [
        (part.type, part.refusal if part.text is None else part.text) for part in content or ()
    ]
    known = [text or "" for kind, text in texts if text is not None or kind in _TEXTS]
    odd = [kind for kind, text in texts if text is None and kind not in _TEXTS]
    if odd and not is_earlier:
        raise invalid(f"a part of type {odd[0][:40]!r} has no text; this model reads text alone")
    return "".join(known)


def whole(reply: AnswerHead, model: str, answer: Answer) -> Document:
    """Returns the document of an answer."""
    counts = answer.counts
    return {
        **_head(reply, model, "chat.completion"),
        "choices": [
            {
                "index": index,
                "message": _answer_message(choice),
                "logprobs": token_infos(choice.tokens),
                "finish_reason": choice.reason,
            }
            for index, choice in enumerate(answer.choices)
        ],
        "usage": openai.usage(counts, len(counts)),
        "timings": openai.timings(counts[0]),
    }


def _answer_message(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.calls:
        message["content"] = choice.text or None
        message["tool_calls"] = [_call(call) for call in choice.calls]
    return message


def _call(call: Call) -> Document:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def token_infos(tokens: Sequence[TokenInfo]) -> Document | None:
    """Returns the log-probabilities of tokens; None where none were asked for."""
    if not tokens:
        return None

    def likely(info: Any) -> dict[str, Any]:
        return {"token": info.text, "logprob": info.logprob, "bytes": list(info.spelling)}

    content = [
        {**likely(t.chosen), "top_logprobs": [likely(info) for info in t.top]} for t in tokens
    ]
    return {"content": content, "refusal": None}


class ChatFramer(openai.ChunkFramer):
    """Makes the chunks of a streamed answer."""

    def begin(self, n_prompt: int) -> Iterable[bytes]:
        """Returns a chunk for each answer that names whose turn it is."""
        for index in range(self._n):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def of(self, event: Event) -> Iterable[bytes]:
        """Returns the chunk of an event."""
        if isinstance(event, TextDelta):
            said = {"content": event.text}
            yield self._chunk(event.index, said, token_infos(event.tokens), event.origin)
        elif isinstance(event, ReasoningDelta):
            yield self._chunk(event.index, {"reasoning_content": event.text})
        elif isinstance(event, CallDelta):
            yield self._chunk(event.index, {"tool_calls": [_call_piece(event)]})
        elif isinstance(event, PromptProgress):
            yield self.chunk(event.index, {"delta": {}}, more=openai.progress(event))
        else:
            yield self.last_chunk(event, {"delta": {}})

    def _chunk(
        self, index: int, delta: Document, logprobs: Document | None = None, origin: str = ""
    ) -> bytes:
        return self.chunk(index, {"delta": delta, **openai.origin_field(origin)}, logprobs)


def _call_piece(event: CallDelta) -> dict[str, Any]:
    if not event.id:
        return {"index": event.call, "function": {"arguments": event.arguments}}
    function = {"name": event.name, "arguments": event.arguments}
    return {"index": event.call, "id": event.id, "type": "function", "function": function}


def _head(reply: AnswerHead, model: str, kind: str) -> Document:
    return {"id": f"chatcmpl-{reply.id}", "object": kind, "created": reply.created, "model": model}


ENDPOINT = Endpoint("/v1/chat/completions", ChatBody, read, openai.error)
