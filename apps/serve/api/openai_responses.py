"""OpenAI's responses: `POST /v1/responses`. Items of the last answers may be named by their ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from edgedec.apps.serve.api import openai, rows
from edgedec.apps.serve.api.endpoint import AnswerHead, Document, Endpoint, ParsedRequest
from edgedec.apps.serve.api.fields import (
    Body,
    MaxTokens,
    NumLikeliest,
    Others,
    Role,
    Sampling,
    Text,
    harmless,
    length_settings,
    read_body,
    tool_part_text,
)
from edgedec.apps.serve.api.kept_items import KeptItems
from edgedec.apps.serve.api.openai_chat import (
    ChatMessage,
    Function,
    Part,
    ResponseFormat,
    ToolCall,
    allowed,
    chat_message,
    format_settings,
    token_infos,
)
from edgedec.apps.serve.api.thinking import Continuing, Thinking
from edgedec.apps.serve.core import (
    AUTO,
    Answer,
    CallDelta,
    ChatPrompt,
    Choice,
    CoreRequest,
    Counts,
    Done,
    Event,
    ReasoningDelta,
    ServeError,
    TextDelta,
    TokenInfo,
    Tool,
    invalid,
)

_KEPT = KeptItems()

_LOGPROBS = "message.output_text.logprobs"
"""What ``include`` has if log-probabilities are wanted."""


class Item(Body):
    """An item of the input: a message, a call that was made, or what it gave."""

    others: ClassVar[Others] = rows.MARKS

    type: Text = "message"
    id: Text = ""
    role: Role | None = None
    content: str | list[Part] | None = None
    call_id: Text = ""
    name: Text = ""
    arguments: Any = ""
    input: Any = ""
    output: Any = None


class ResponseTool(Body):
    """A tool. Those that are no functions are left out. tools: the functions of a namespace."""

    others: ClassVar[Others] = {**rows.TOOLS, **harmless("async"), **rows.HOSTED_TOOLS}

    type: str
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    tools: list[ResponseTool] | None = None


class NamedTool(Body):
    """The one tool to call, or those that may be called: ``allowed_tools``."""

    others: ClassVar[Others] = harmless("server_label")

    type: str
    name: str = ""
    mode: str | None = None
    tools: list[ResponseTool] | None = None


class TextOptions(Body):
    """What the text has to look like."""

    others: ClassVar[Others] = harmless("verbosity")

    format: ResponseFormat | None = None


class ResponsesBody(Thinking, Continuing, Sampling):
    """The body of a request."""

    others: ClassVar[Others] = {**rows.RESPONSES, **harmless("stream_options")}

    model: str = ""
    input: str | list[Item]
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: MaxTokens | None = None
    text: TextOptions | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: str | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = None
    top_logprobs: NumLikeliest | None = None
    previous_response_id: str | None = None
    store: bool | None = None


def read(data: bytes, reply: AnswerHead) -> ParsedRequest:
    """Returns what a body asks for.

    Raises:
        ServeError: The body makes no sense.
    """
    body = read_body(ResponsesBody, data)
    if body.previous_response_id is not None:
        message = "responses are not stored here: send the whole conversation as input"
        raise invalid(message, param="previous_response_id")
    settings = body.settings()
    settings.update(length_settings("max_output_tokens", body.max_output_tokens))
    if body.text is not None and body.text.format is not None:
        settings.update(format_settings(body.text.format))
    if _LOGPROBS in (body.include or ()):
        settings["logprobs"] = body.top_logprobs or 0
    request = CoreRequest(body.model, [_prompt(body)], settings)
    head = {"id": f"resp_{reply.id}", "object": "response", "created_at": reply.created}
    head = {**head, "model": body.model, **_echoes(body)}
    names = {name: _called(space, tool) for name, (space, tool) in _functions(body).items()}
    framer = ResponsesFramer(head, names) if body.stream else None
    beat = None if framer is None else framer.beat
    return ParsedRequest(request, partial(whole, head, names), framer, beat)


def _echoes(body: ResponsesBody) -> dict[str, Any]:
    """Returns what an answer repeats of its request."""
    choice = body.tool_choice or AUTO
    return {
        "tools": [tool.model_dump(exclude_unset=True) for tool in body.tools or ()],
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(exclude_unset=True),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_logprobs": body.top_logprobs,
        "store": body.store is not False,
    }


def _functions(body: ResponsesBody) -> dict[str, tuple[str, ResponseTool]]:
    """Returns the functions by the names that the model sees, each with its namespace."""
    functions: dict[str, tuple[str, ResponseTool]] = {}
    for outer in body.tools or ():
        is_space = outer.type == "namespace"
        for tool in (outer.tools or ()) if is_space else (outer,):
            if tool.type == "function":
                is_taken = is_space and tool.name in functions
                name = f"{outer.name}.{tool.name}" if is_taken else tool.name
                functions[name] = (outer.name if is_space else "", tool)
    return functions


def _called(namespace: str, tool: ResponseTool) -> dict[str, str]:
    """Returns what names a function in a call of it."""
    return {"name": tool.name, **({"namespace": namespace} if namespace else {})}


def _prompt(body: ResponsesBody) -> ChatPrompt:
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    items = [Item(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    messages += [message for item in items if (message := _message(item)) is not None]
    tools = [
        Tool(name, tool.description or "", tool.parameters or {})
        for name, (_, tool) in _functions(body).items()
    ]
    choice = body.tool_choice or AUTO
    choice = choice if isinstance(choice, str) else choice.name or AUTO
    is_parallel = body.parallel_tool_calls
    may_be_several = choice == AUTO if is_parallel is None else is_parallel
    if isinstance(body.tool_choice, NamedTool) and body.tool_choice.type == "allowed_tools":
        named = [tool.name for tool in body.tool_choice.tools or () if tool.type == "function"]
        tools, choice = allowed(tools, named, body.tool_choice.mode)
    return ChatPrompt(
        messages,
        tools,
        choice,
        may_be_several,
        body.variables(),
        body.is_continued,
        body.thought_budget,
    )


def _message(item: Item) -> dict[str, Any] | None:
    """Returns an item as a message; None for thoughts and items of tools that nobody knows."""
    if item.type == "item_reference" or (item.id and item.role is None and item.type == "message"):
        return _message(Item.model_validate(_KEPT.find(item.id)))
    if item.type in ("message", ""):
        if item.role is None:
            raise invalid("input has a message without a role", param="input")
        return chat_message(ChatMessage(role=item.role, content=item.content))
    if item.type in ("function_call", "custom_tool_call"):
        is_custom = item.type == "custom_tool_call"
        arguments = {"input": item.input} if is_custom else item.arguments
        function = Function(name=item.name, arguments=arguments)
        call = ToolCall(id=item.call_id, function=function)
        return chat_message(ChatMessage(role="assistant", tool_calls=[call]))
    if item.type in ("function_call_output", "custom_tool_call_output"):
        content = _output_text(item.output)
        return {"role": "tool", "content": content, "tool_call_id": item.call_id}
    return None


def _output_text(output: Any) -> str:
    """Returns the output of a client's tool as text. Pictures are named; other values are JSON."""
    if isinstance(output, str) or output is None:
        return output or ""
    if not isinstance(output, list):
        return json.dumps(output, ensure_ascii=False)
    return "".join(tool_part_text(part) for part in output)


Names = Mapping[str, Mapping[str, str]]
"""What names a function in a call, by the name that the model sees."""


def whole(head: Document, names: Names, answer: Answer) -> Document:
    """Returns the document of an answer."""
    choice = answer.choices[0]
    items = _items(head["id"], choice, names)
    _keep(head, items)
    return _response(head, items, choice.reason, answer.counts[0])


def _keep(head: Document, items: list[dict[str, Any]]) -> None:
    if head["store"]:
        _KEPT.keep(items)


def _response(
    head: Document, output: list[dict[str, Any]], reason: str = "", counts: Counts | None = None
) -> dict[str, Any]:
    is_cut = reason == "length"
    status = "incomplete" if is_cut else "completed" if reason else "in_progress"
    return {
        **head,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": output,
        "usage": None if counts is None else _usage(counts),
    }


def _usage(counts: Counts) -> dict[str, Any]:
    return {
        "input_tokens": counts.n_prompt,
        "input_tokens_details": {"cached_tokens": counts.n_cached, "cache_write_tokens": 0},
        "output_tokens": counts.n_new,
        "output_tokens_details": {"reasoning_tokens": counts.n_reasoning},
        "total_tokens": counts.n_prompt + counts.n_new,
    }


def _items(identity: str, choice: Choice, names: Names) -> list[dict[str, Any]]:
    """Returns the items of an answer: thoughts, text, calls."""
    items: list[dict[str, Any]] = []
    if choice.reasoning:
        items.append(_item(f"rs_{identity}", "reasoning", choice.reasoning))
    if choice.text or not choice.calls:
        logprobs = _logprobs(choice.tokens)
        items.append(_item(f"msg_{identity}", "message", choice.text, logprobs=logprobs))
    for call in choice.calls:
        items.append(_item(call.id, "function_call", call.arguments, names[call.name]))
    if choice.reason == "length" and "status" in items[-1]:
        items[-1]["status"] = "incomplete"
    return items


def _item(
    identity: str,
    kind: str,
    text: str,
    called: Mapping[str, str] = MappingProxyType({}),
    status: str = "completed",
    logprobs: Sequence[Document] = (),
) -> dict[str, Any]:
    """Returns an item that does not grow any more."""
    if kind == "reasoning":
        content = [{"type": "reasoning_text", "text": text}]
        return {"id": identity, "type": kind, "summary": [], "content": content}
    if kind == "message":
        return {
            **_begun(identity, kind, called),
            "status": status,
            "content": [_part(text, logprobs)],
        }
    return {**_begun(identity, kind, called), "status": status, "arguments": text}


def _begun(identity: str, kind: str, called: Mapping[str, str]) -> dict[str, Any]:
    """Returns an item that has just begun."""
    if kind == "reasoning":
        return {"id": identity, "type": kind, "summary": []}
    if kind == "message":
        begun = {"id": identity, "type": kind, "status": "in_progress"}
        return {**begun, "role": "assistant", "content": []}
    begun = {"id": f"fc_{identity}", "type": kind, "status": "in_progress"}
    return {**begun, "call_id": identity, **called, "arguments": ""}


def _part(text: str, logprobs: Sequence[Document] = ()) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}


def _logprobs(tokens: Sequence[TokenInfo]) -> list[Document]:
    infos = token_infos(tokens)
    return [] if infos is None else list(infos["content"])


class ResponsesFramer:
    """Makes the events of a streamed answer: items that begin, grow and end."""

    def __init__(self, head: Document, names: Names) -> None:
        self._head = head
        self._names = names
        self._n_events = 0
        self._items: list[dict[str, Any]] = []
        self._open: tuple[str, str, Mapping[str, str]] | None = None  # of the item in progress
        self._text = ""
        self._logprobs: list[Document] = []  # of the item's text

    def begin(self, n_prompt: int) -> Iterable[bytes]:
        """Returns the events that begin the response."""
        yield self._event("response.created", response=_response(self._head, []))
        yield self._event("response.in_progress", response=_response(self._head, []))

    def of(self, event: Event) -> Iterable[bytes]:
        """Returns the events of one event of ours."""
        identity = self._head["id"]
        if isinstance(event, Done):
            yield from self._end(event)
        elif isinstance(event, TextDelta):
            yield from self._in_item(f"msg_{identity}", "message")
            logprobs = _logprobs(event.tokens)
            self._logprobs += logprobs
            yield self._delta("response.output_text.delta", event.text, logprobs=logprobs)
        elif isinstance(event, ReasoningDelta):
            yield from self._in_item(f"rs_{identity}", "reasoning")
            yield self._delta("response.reasoning_text.delta", event.text)
        elif isinstance(event, CallDelta):
            if event.id:
                yield from self._in_item(event.id, "function_call", self._names[event.name])
            yield self._delta("response.function_call_arguments.delta", event.arguments)

    def beat(self) -> Iterable[bytes]:
        """Returns an event: comments are no signs of life to Codex."""
        yield self._event("response.in_progress", response=_response(self._head, []))

    def end(self) -> Iterable[bytes]:
        """Returns nothing: the last event has the whole response."""
        return ()

    def failed(self, problem: ServeError) -> Iterable[bytes]:
        """Returns events that report the problem: some clients read the one, some the other."""
        fault = "server_error" if problem.status >= 500 else "invalid_prompt"
        code = problem.details.get("code") or fault
        yield self._event("error", code=code, message=problem.message, param=None)
        failed = {"status": "failed", "error": {"code": code, "message": problem.message}}
        yield self._event("response.failed", response={**_response(self._head, []), **failed})

    def _end(self, done: Done) -> Iterable[bytes]:
        if not self._items and self._open is None:
            yield from self._in_item(f"msg_{self._head['id']}", "message")
        yield from self._close_item("incomplete" if done.reason == "length" else "completed")
        _keep(self._head, self._items)
        response = _response(self._head, self._items, done.reason, done.counts)
        yield self._event(f"response.{response['status']}", response=response)

    def _in_item(
        self, identity: str, kind: str, called: Mapping[str, str] = MappingProxyType({})
    ) -> Iterable[bytes]:
        """Begins an item unless it is in progress. called: what names the function of a call."""
        if self._open is not None and self._open[0] == identity:
            return
        yield from self._close_item()
        self._open, self._text, self._logprobs = (identity, kind, called), "", []
        begun = _begun(identity, kind, called)
        yield self._event("response.output_item.added", item=begun, **self._place)
        if kind == "message":
            yield self._event("response.content_part.added", part=_part(""), **self._inside)

    def _close_item(self, status: str = "completed") -> Iterable[bytes]:
        if self._open is None:
            return
        identity, kind, called = self._open
        if kind == "message":
            done = {"text": self._text, "logprobs": self._logprobs}
            yield self._event("response.output_text.done", **done, **self._inside)
            part = _part(self._text, self._logprobs)
            yield self._event("response.content_part.done", part=part, **self._inside)
        elif kind == "reasoning":
            done = {"text": self._text}
            yield self._event("response.reasoning_text.done", **done, **self._inside)
        elif kind == "function_call":
            done = {"arguments": self._text, "name": called["name"]}
            kind_done = "response.function_call_arguments.done"
            yield self._event(kind_done, **done, **self._inside)
        item = _item(identity, kind, self._text, called, status, self._logprobs)
        yield self._event("response.output_item.done", item=item, **self._place)
        self._items.append(item)
        self._open = None

    @property
    def _place(self) -> dict[str, Any]:
        return {"output_index": len(self._items)}

    @property
    def _inside(self) -> dict[str, Any]:
        assert self._open is not None
        identity, kind, _ = self._open
        is_call = kind == "function_call"
        where = {} if is_call else {"content_index": 0}
        return {**self._place, "item_id": f"fc_{identity}" if is_call else identity, **where}

    def _delta(self, kind: str, text: str, **more: Any) -> bytes:
        self._text += text
        return self._event(kind, delta=text, **more, **self._inside)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._n_events += 1
        return openai.sse({"type": kind, "sequence_number": self._n_events - 1, **fields}, kind)


ENDPOINT = Endpoint("/v1/responses", ResponsesBody, read, openai.error)
