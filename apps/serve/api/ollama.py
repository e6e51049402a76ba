"""Ollama's interface: `POST /api/chat`, `POST /api/generate` and its model lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar

from edgedec.apps.serve.api import rows
from edgedec.apps.serve.api.endpoint import (
    AnswerHead,
    Document,
    Endpoint,
    ParsedRequest,
    json_bytes,
)
from edgedec.apps.serve.api.fields import (
    Body,
    NumLikeliest,
    Others,
    Role,
    Sampling,
    Text,
    Whole,
    call_arguments,
    harmless,
    read_body,
)
from edgedec.apps.serve.api.openai_chat import AnyTool, offered_tools, token_infos
from edgedec.apps.serve.api.thinking import Thinking
from edgedec.apps.serve.core import (
    Answer,
    Call,
    CallDelta,
    ChatPrompt,
    Choice,
    CoreRequest,
    Counts,
    Done,
    Event,
    InfillPrompt,
    Prompt,
    ReasoningDelta,
    ServeError,
    TextDelta,
    TextPrompt,
    invalid,
)
from edgedec.apps.serve.model_registry import Offer

VERSION = "0.14.0"
"""Of Ollama, whose clients look for what that one could do: Codex wants 0.13.4 or newer."""

NDJSON = "application/x-ndjson"
_BEAT = b" "  # JSON may begin with spaces
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_DURATION = re.compile(r"(-?\d+(?:\.\d+)?)(ms|s|m|h|)")


class Options(Sampling):
    """What Ollama keeps apart from a request's other fields."""

    others: ClassVar[Others] = rows.OLLAMA_OPTIONS

    drops_empty_stops: ClassVar[bool] = True

    num_predict: Whole | None = None


class Common(Body):
    """What both kinds of requests have."""

    others: ClassVar[Others] = rows.OLLAMA

    model: str
    stream: bool | None = None
    options: Options | None = None
    keep_alive: str | float | None = None
    format: str | dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: NumLikeliest | None = None

    def settings(self) -> dict[str, Any]:
        """Returns the settings of a request that the fields state."""
        options = self.options or Options()
        settings = options.settings()
        if (n_most := options.num_predict) is not None and n_most > 0:
            settings["max_new_tokens"] = n_most
        if self.logprobs:
            settings["logprobs"] = self.top_logprobs or 0
        if self.format:
            if isinstance(self.format, str) and self.format != "json":
                raise invalid(f"format is {self.format[:40]!r}, expected json or a schema")
            is_schema = isinstance(self.format, dict)
            settings["json_schema"] = self.format if is_schema else {"type": "object"}
        return settings

    def request(self, prompts: Sequence[Prompt]) -> CoreRequest:
        """Returns the request for ``prompts``; without any, the model is loaded, or unloaded."""
        keep_alive_s = None if self.keep_alive is None else seconds(self.keep_alive)
        return CoreRequest(self.model, prompts, self.settings(), keep_alive_s=keep_alive_s)


class CalledFunction(Body):
    """A function that an earlier answer called."""

    others: ClassVar[Others] = harmless("index description")

    name: Text = ""
    arguments: Any = None


class EarlierCall(Body):
    """A call that an earlier answer made."""

    others: ClassVar[Others] = harmless("id type")

    function: CalledFunction


class ChatMessage(Body):
    """A message of the conversation."""

    others: ClassVar[Others] = rows.MARKS

    role: Role
    content: Text = ""
    tool_calls: list[EarlierCall] | None = None
    tool_name: str | None = None
    images: list[Any] | None = None


class ChatBody(Common, Thinking):
    """The body of a request for a conversation."""

    messages: list[ChatMessage]
    tools: list[AnyTool] | None = None


class GenerateBody(Common, Thinking):
    """The body of a request for text."""

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    raw: bool = False


def seconds(text: str | float) -> float:
    """Returns a duration such as ``5m``; a number means seconds, a negative one for ever."""
    if not isinstance(text, str):
        return float(text)
    parts = _DURATION.findall(text.strip())
    if not parts or "".join(map("".join, parts)) != text.strip():
        raise invalid(f"keep_alive is {text[:40]!r}, expected a duration such as 5m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def read_chat(data: bytes, reply: AnswerHead) -> ParsedRequest:
    """Returns what a body asks for.

    Raises:
        ServeError: The body makes no sense.
    """
    body = read_body(ChatBody, data)
    tools = offered_tools(body.tools)
    messages = [_message(message) for message in body.messages]
    prompt = ChatPrompt(
        messages, tools, variables=body.variables(), thought_budget=body.thought_budget
    )
    return _parsed(body, [prompt] if body.messages else [], reply, _chat_part)


def _message(message: ChatMessage) -> dict[str, Any]:
    if message.images:
        raise invalid("a message has images; this model reads text alone", param="images")
    role = {"developer": "system", "function": "tool"}.get(message.role, message.role)
    turn: dict[str, Any] = {"role": role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": call_arguments(call.function.arguments),
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_name is not None:
        turn["name"] = message.tool_name
    return turn


def read_generate(data: bytes, reply: AnswerHead) -> ParsedRequest:
    """Returns what a body asks for.

    Raises:
        ServeError: The body makes no sense.
    """
    body = read_body(GenerateBody, data)
    return _parsed(body, _prompts(body), reply, _text_part)


def _prompts(body: GenerateBody) -> list[Prompt]:
    if body.suffix:
        return [InfillPrompt(body.prompt, body.suffix)]
    if not body.prompt:
        return []
    if body.raw:
        return [TextPrompt(body.prompt)]
    system = [{"role": "system", "content": body.system}] if body.system else []
    messages = [*system, {"role": "user", "content": body.prompt}]
    return [ChatPrompt(messages, variables=body.variables(), thought_budget=body.thought_budget)]


Part = Callable[[Choice], dict[str, Any]]


def _parsed(
    body: Common, prompts: Sequence[Prompt], reply: AnswerHead, part: Part
) -> ParsedRequest:
    head = {"model": body.model, "created_at": moment(reply.created)}
    request = body.request(prompts)
    if not prompts:
        reason = "unload" if request.keep_alive_s == 0 else "load"
        done = {**head, **part(Choice()), "done": True, "done_reason": reason}
        return ParsedRequest(request, lambda answer: done)
    framer = None if body.stream is False else LineFramer(head, part)
    return ParsedRequest(request, partial(_whole, head, part), framer)


def _chat_part(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": choice.text}
    if choice.reasoning:
        message["thinking"] = choice.reasoning
    if choice.calls:
        message["tool_calls"] = [
            {"id": call.id, "function": _called(index, call)}
            for index, call in enumerate(choice.calls)
        ]
    return {"message": message, **_logprobs(choice)}


def _called(index: int, call: Call) -> dict[str, Any]:
    arguments = call_arguments(call.arguments)
    return {"index": index, "name": call.name, "arguments": arguments}


def _logprobs(choice: Choice) -> dict[str, Any]:
    """Returns the log-probabilities of a text; nothing where none were asked for."""
    infos = token_infos(choice.tokens)
    return {} if infos is None else {"logprobs": infos["content"]}


def _text_part(choice: Choice) -> dict[str, Any]:
    reply: dict[str, Any] = {"response": choice.text, **_logprobs(choice)}
    return {**reply, "thinking": choice.reasoning} if choice.reasoning else reply


def _whole(head: Document, part: Part, answer: Answer) -> Document:
    choice = answer.choices[0]
    return {**head, **part(choice), **_ending(choice.reason, answer.counts[0])}


def _ending(reason: str, counts: Counts) -> dict[str, Any]:
    return {
        "done": True,
        "done_reason": "length" if reason == "length" else "stop",
        "total_duration": _nanoseconds(counts.prompt_ms + counts.decode_ms),
        "load_duration": 0,
        "prompt_eval_count": counts.n_prompt,
        "prompt_eval_duration": _nanoseconds(counts.prompt_ms),
        "eval_count": counts.n_new,
        "eval_duration": _nanoseconds(counts.decode_ms),
    }


def _nanoseconds(ms: float) -> int:
    return round(ms * 1e6)


class LineFramer:
    """Makes the lines of a streamed answer. Calls come whole, when the answer is complete."""

    def __init__(self, head: Document, part: Part) -> None:
        self._head = head
        self._part = part
        self._calls = Choice()

    def begin(self, n_prompt: int) -> Iterable[bytes]:
        """Returns nothing: every line has text."""
        return ()

    def of(self, event: Event) -> Iterable[bytes]:
        """Returns the line of an event."""
        if isinstance(event, CallDelta):
            self._calls.add(event)
        elif isinstance(event, Done):
            if self._calls.calls:
                yield self._line(self._calls, {"done": False})
            yield self._line(Choice(), _ending(event.reason, event.counts))
        elif isinstance(event, TextDelta | ReasoningDelta):
            yield self._line(_piece(event), {"done": False})

    def end(self) -> Iterable[bytes]:
        """Returns nothing: the last line says that it is done."""
        return ()

    def failed(self, problem: ServeError) -> Iterable[bytes]:
        """Returns a line that reports the problem."""
        yield line(error(problem))

    def _line(self, choice: Choice, more: Document) -> bytes:
        return line({**self._head, **self._part(choice), **more})


def _piece(event: TextDelta | ReasoningDelta) -> Choice:
    if isinstance(event, ReasoningDelta):
        return Choice(reasoning=event.text)
    return Choice(text=event.text, tokens=list(event.tokens))


def line(document: Document) -> bytes:
    """Returns ``document`` as a line of a stream."""
    return json_bytes(document) + b"\n"


def error(problem: ServeError) -> Document:
    """Returns the document of a problem."""
    return {"error": problem.message, "type": problem.kind, **problem.details}


def moment(time_s: float) -> str:
    """Returns seconds since 1970 as Ollama writes them."""
    return datetime.fromtimestamp(time_s, UTC).isoformat().replace("+00:00", "Z")


def tags(offers: Sequence[Offer]) -> Document:
    """Returns the models that may be asked for."""
    return {"models": [_tag(offer) for offer in offers]}


def running(offers: Sequence[Offer]) -> Document:
    """Returns the models that are in memory."""
    return {"models": [{**_tag(offer), "size_vram": 0} for offer in offers]}


def _tag(offer: Offer) -> dict[str, Any]:
    return {
        "name": offer.name,
        "model": offer.name,
        "modified_at": moment(offer.created),
        "size": offer.n_bytes,
        "digest": offer.digest,
        "details": _details(offer),
    }


def _details(offer: Offer) -> dict[str, Any]:
    family = offer.manifest.target.config.family
    return {
        "format": "edgedec",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": offer.manifest.quantization,
    }


def shown(offer: Offer) -> Document:
    """Returns what is known of one model."""
    target = offer.manifest.target
    family = target.config.family
    capabilities = [] if target.config.is_embedder else ["completion"]
    if offer.manifest.embedding is not None:
        capabilities.append("embedding")
    if offer.has_template:
        capabilities.append("tools")
    if offer.can_infill:
        capabilities.append("insert")
    return {
        "license": offer.manifest.licence or "",
        "modelfile": "",
        "parameters": "",
        # Clients look for these names in it to learn what the model can do.
        "template": "{{ .Messages }}{{ .Tools }}" + ("{{ .Suffix }}" if offer.can_infill else ""),
        "details": _details(offer),
        "model_info": {
            "general.architecture": family,
            f"{family}.context_length": target.context,
            f"{family}.embedding_length": target.config.hidden_size,
        },
        "capabilities": capabilities,
        "modified_at": moment(offer.created),
    }


CHAT = Endpoint("/api/chat", ChatBody, read_chat, error, NDJSON, _BEAT)
GENERATE = Endpoint("/api/generate", GenerateBody, read_generate, error, NDJSON, _BEAT)
