"""Anthropic's messages: `POST /v1/messages`, and `/v1/messages/count_tokens`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field

from edgedec.apps.serve.api import openai, rows
from edgedec.apps.serve.api.endpoint import AnswerHead, Document, Endpoint, ParsedRequest
from edgedec.apps.serve.api.fields import (
    Body,
    Knobs,
    Others,
    Positive,
    Sampling,
    Text,
    Whole,
    call_arguments,
    checked_stops,
    harmless,
    read_body,
    tool_part_text,
)
from edgedec.apps.serve.api.thinking import Continuing, Thinking
from edgedec.apps.serve.core import (
    AUTO,
    NONE,
    REQUIRED,
    Answer,
    CallDelta,
    ChatPrompt,
    CoreRequest,
    Counts,
    Done,
    Event,
    ReasoningDelta,
    ServeError,
    TextDelta,
    Tool,
    invalid,
)
from edgedec.apps.serve.problems import OVERFLOW

_BILLING = "x-anthropic-billing-header:"
"""Begins a system block that differs from request to request, so that no prefix would be found."""

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Block(Body):
    """A block of content. content: of a tool's result."""

    others: ClassVar[Others] = rows.MARKS

    type: str
    text: str | None = None
    id: Text = ""
    name: Text = ""
    input: Any = None
    tool_use_id: Text = ""
    content: Any = None
    source: Any = None


class MessageIn(Body):
    """A message of the conversation."""

    others: ClassVar[Others] = rows.MARKS

    role: Literal["user", "assistant", "system"]
    content: str | list[Block] | None


class ToolIn(Body):
    """A tool; those that have no schema of their own are left out."""

    others: ClassVar[Others] = rows.TOOLS

    name: Text = ""
    description: Text = ""
    input_schema: dict[str, Any] | None = None


class ChoiceIn(Body):
    """Which tool is to be called."""

    others: ClassVar[Others] = {}

    type: str
    name: Text = ""
    disable_parallel_tool_use: bool | None = None


class OutputFormat(Body):
    """What an answer has to look like."""

    type: str
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class OutputConfig(Body):
    """How an answer is to be. effort: how much the model thinks."""

    others: ClassVar[Others] = harmless("task_budget")

    format: OutputFormat | None = None
    effort: str | None = None


class CountBody(Thinking, Continuing, Knobs):
    """The body of a request to count tokens."""

    others: ClassVar[Others] = rows.ANTHROPIC

    model: str = ""
    messages: list[MessageIn] = Field(min_length=1)
    system: str | list[Block] | None = None
    tools: list[ToolIn] | None = None
    tool_choice: ChoiceIn | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None


class MessagesBody(CountBody):
    """The body of a request."""

    max_tokens: Positive
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Whole | None = None
    seed: Whole | None = None


def read(data: bytes, reply: AnswerHead) -> ParsedRequest:
    """Returns what a body asks for.

    Raises:
        ServeError: The body makes no sense.
    """
    body = read_body(MessagesBody, data)
    settings = {**body.knob_settings(), "max_new_tokens": body.max_tokens}
    sampled = Sampling(
        temperature=body.temperature, top_p=body.top_p, top_k=body.top_k, seed=body.seed
    )
    settings.update(sampled.settings())
    form = body.output_format if body.output_config is None else body.output_config.format
    if form is not None:
        if form.type != "json_schema" or form.json_schema is None:
            raise invalid(
                f"output_config.format is of type {form.type[:40]!r}, expected json_schema and "
                "its schema",
                param="output_config",
            )
        settings["json_schema"] = form.json_schema
    if body.stop_sequences:
        settings["stop"] = checked_stops(body.stop_sequences)
    request = CoreRequest(body.model, [_prompt(body)], settings)
    framer = MessagesFramer(reply, body.model) if body.stream else None
    return ParsedRequest(request, partial(whole, reply, body.model), framer)


def read_count(data: bytes) -> tuple[str, ChatPrompt]:
    """Returns the model and the prompt whose tokens are to be counted."""
    body = read_body(CountBody, data)
    return body.model, _prompt(body)


def _prompt(body: CountBody) -> ChatPrompt:
    messages: list[dict[str, Any]] = []
    if system := _system(body.system):
        messages.append({"role": "system", "content": system})
    for message in body.messages:
        messages += _messages(message)
    tools = [
        Tool(tool.name, tool.description, tool.input_schema)
        for tool in body.tools or ()
        if tool.input_schema is not None
    ]
    choice = body.tool_choice or ChoiceIn(type=AUTO)
    known = {"auto": AUTO, "any": REQUIRED, "none": NONE, "tool": choice.name}
    if choice.type not in known:
        raise invalid(f"tool_choice.type is {choice.type[:40]!r}, expected {', '.join(known)}")
    is_parallel = choice.type == AUTO and not choice.disable_parallel_tool_use
    return ChatPrompt(
        messages,
        tools,
        known[choice.type],
        is_parallel,
        body.variables(),
        body.is_continued,
        body.thought_budget,
    )


def _system(system: str | list[Block] | None) -> str:
    blocks = [system] if isinstance(system, str) else [block.text or "" for block in system or ()]
    return "\n".join(block for block in blocks if not block.startswith(_BILLING))


def _messages(message: MessageIn) -> list[dict[str, Any]]:
    """Returns a message in OpenAI's form: results of tools are messages of their own there."""
    if isinstance(message.content, str | None):
        return [{"role": message.role, "content": message.content or ""}]
    results = [
        {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block.content)}
        for block in message.content
        if block.type == "tool_result"
    ]
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": call_arguments(block.input)},
        }
        for block in message.content
        if block.type == "tool_use"
    ]
    said = [block for block in message.content if block.type not in ("tool_use", "tool_result")]
    is_earlier = message.role == "assistant"
    said = [
        block
        for block in said
        if not (_is_left_out(block) or (is_earlier and not _has_text(block)))
    ]
    text = _text(said)
    if not (text or calls) and results:
        return results
    turn: dict[str, Any] = {"role": message.role, "content": text}
    return [*results, {**turn, "tool_calls": calls} if calls else turn]


def _is_left_out(block: Block) -> bool:
    """Whether a block says nothing to this model: thoughts, and what servers' own tools did."""
    return block.type.endswith(("thinking", "_tool_use", "_tool_result"))


def _has_text(block: Block) -> bool:
    return block.text is not None or block.type == "text" or _document(block) is not None


def _document(block: Block) -> str | None:
    """Returns the text of a document that has one."""
    if block.type == "search_result":
        return _result(block.content)
    data = block.source.get("data") if isinstance(block.source, dict) else None
    is_text = block.type == "document" and isinstance(data, str)
    return data if is_text and block.source.get("type") == "text" else None


def _result(content: Any) -> str:
    """Returns what a tool of the client gave, as text."""
    if isinstance(content, str) or content is None:
        return content or ""
    parts = content if isinstance(content, list) else [content]
    return "".join(map(tool_part_text, parts))


def _text(blocks: list[Block]) -> str:
    if odd := [block.type for block in blocks if not _has_text(block)]:
        raise invalid(f"a block of type {odd[0][:40]!r} has no text; this model reads text alone")
    return "".join(block.text or _document(block) or "" for block in blocks)


def error(problem: ServeError) -> Document:
    """Returns the document of a problem. Claude Code compacts if it reads "prompt is too long"."""
    if problem.kind == OVERFLOW:
        numbers = {name: problem.details[name] for name in ("n_prompt_tokens", "n_ctx")}
        most = f"{numbers['n_ctx']} maximum"
        problem = invalid(
            f"prompt is too long: {numbers['n_prompt_tokens']} tokens > {most}", **numbers
        )
    kinds = {
        503: "overloaded_error",
        500: "api_error",
        504: "timeout_error",
        413: "request_too_large",
    }
    kind = kinds.get(problem.status, problem.kind)
    return {
        "type": "error",
        "error": {"type": kind, "message": problem.message, **problem.details},
    }


def _usage(counts: Counts) -> dict[str, int]:
    return {
        "input_tokens": counts.n_prompt - counts.n_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.n_cached,
        "output_tokens": counts.n_new,
    }


def whole(reply: AnswerHead, model: str, answer: Answer) -> Document:
    """Returns the document of an answer."""
    choice = answer.choices[0]
    content: list[dict[str, Any]] = []
    if choice.reasoning:
        content.append({"type": "thinking", "thinking": choice.reasoning, "signature": ""})
    if choice.text or not choice.calls:
        content.append({"type": "text", "text": choice.text})
    for call in choice.calls:
        content.append({**_tool_use(call.id, call.name), "input": call_arguments(call.arguments)})
    return {
        **_head(reply, model),
        "content": content,
        **_ending(answer.ends[0]),
        "usage": _usage(answer.counts[0]),
    }


def _ending(done: Done) -> dict[str, Any]:
    if done.reason == "stop" and done.stop_text:
        return {"stop_reason": "stop_sequence", "stop_sequence": done.stop_text}
    return {"stop_reason": _REASONS[done.reason], "stop_sequence": None}


def _tool_use(call_id: str, name: str) -> dict[str, Any]:
    identity = "toolu_" + call_id.removeprefix("call_")
    return {"type": "tool_use", "id": identity, "name": name, "input": {}}


def _head(reply: AnswerHead, model: str) -> dict[str, Any]:
    return {"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "model": model}


class MessagesFramer:
    """Makes the events of a streamed answer: blocks that begin, grow and end."""

    def __init__(self, reply: AnswerHead, model: str) -> None:
        self._message = _head(reply, model)
        self._kind = ""  # of the block in progress
        self._index = -1

    def begin(self, n_prompt: int) -> Iterable[bytes]:
        """Returns the event that begins the message."""
        usage = {
            "input_tokens": n_prompt,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
        }
        empty: dict[str, Any] = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        yield _event("message_start", message={**self._message, **empty})

    def of(self, event: Event) -> Iterable[bytes]:
        """Returns the events of one event of ours."""
        if isinstance(event, TextDelta):
            yield from self._in_block("text", {"type": "text", "text": ""})
            yield self._delta(type="text_delta", text=event.text)
        elif isinstance(event, ReasoningDelta):
            empty = {"type": "thinking", "thinking": "", "signature": ""}
            yield from self._in_block("thinking", empty)
            yield self._delta(type="thinking_delta", thinking=event.text)
        elif isinstance(event, CallDelta):
            if event.id:
                yield from self._in_block(event.id, _tool_use(event.id, event.name))
            if event.arguments:
                yield self._delta(type="input_json_delta", partial_json=event.arguments)
        elif isinstance(event, Done):
            if self._index < 0:
                yield from self._in_block("text", {"type": "text", "text": ""})
            yield from self._end_block()
            yield _event("message_delta", delta=_ending(event), usage=_usage(event.counts))

    def end(self) -> Iterable[bytes]:
        """Returns the event that ends the message."""
        yield _event("message_stop")

    def failed(self, problem: ServeError) -> Iterable[bytes]:
        """Returns an event that reports the problem."""
        yield openai.sse(error(problem), "error")

    def _in_block(self, kind: str, empty: dict[str, Any]) -> Iterable[bytes]:
        """Begins a block of ``kind`` unless it is in progress."""
        if kind != self._kind:
            yield from self._end_block()
            self._kind, self._index = kind, self._index + 1
            yield _event("content_block_start", index=self._index, content_block=empty)

    def _end_block(self) -> Iterable[bytes]:
        if self._kind:
            self._kind = ""
            yield _event("content_block_stop", index=self._index)

    def _delta(self, **delta: str) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)


def _event(kind: str, **fields: Any) -> bytes:
    return openai.sse({"type": kind, **fields}, kind)


ENDPOINT = Endpoint("/v1/messages", MessagesBody, read, error, beat=_event("ping"))
