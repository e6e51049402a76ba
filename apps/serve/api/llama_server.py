"""llama-server's own interface: `POST /completion`, `POST /infill` and what describes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from edgedec.apps.serve.api import openai, rows
from edgedec.apps.serve.api.endpoint import AnswerHead, Document, Endpoint, ParsedRequest
from edgedec.apps.serve.api.fields import (
    Body,
    Natural,
    NumChoices,
    NumLikeliest,
    Others,
    Sampling,
    TextPrompts,
    Whole,
    harmless,
    read_body,
    text_prompts,
)
from edgedec.apps.serve.core import (
    Answer,
    Choice,
    CoreRequest,
    Done,
    Event,
    InfillPrompt,
    LineLimits,
    Prompt,
    PromptProgress,
    ServeError,
    TextDelta,
)
from edgedec.apps.serve.model_registry import Offer


class ExtraFile(Body):
    """Another file that the model is to know."""

    others: ClassVar[Others] = {}

    filename: str = ""
    text: str = ""


class Common(Sampling):
    """What both kinds of requests have."""

    others: ClassVar[Others] = {
        **rows.NOTES,
        **rows.LLAMA,
        **rows.VLLM,
        **harmless("prediction"),
    }

    random_seeds: ClassVar[tuple[int, ...]] = (-1, 2**32 - 1)
    drops_empty_stops: ClassVar[bool] = True

    model: str = ""
    stream: bool | None = None
    n_predict: Whole | None = None
    n_cmpl: NumChoices | None = None
    n_probs: NumLikeliest | None = None
    json_schema: dict[str, Any] | None = None
    ignore_eos: bool | None = None
    response_fields: list[str] | None = None
    t_max_predict_ms: float | None = None
    n_indent: Natural | None = None
    return_progress: bool | None = None

    def request(self, prompts: Sequence[Prompt]) -> CoreRequest:
        """Returns the request for ``prompts``. No tokens at all, a warm-up, becomes one."""
        settings = self.settings()
        if self.n_predict is not None and self.n_predict >= 0:
            settings["max_new_tokens"] = max(1, self.n_predict)
        if self.json_schema is not None:
            settings["json_schema"] = self.json_schema
        if self.ignore_eos is not None:
            settings["ignore_eos"] = self.ignore_eos
        if self.n_probs:
            settings["logprobs"] = self.n_probs
        lines = LineLimits(self.t_max_predict_ms or 0, self.n_indent or 0)
        return CoreRequest(
            self.model,
            prompts,
            settings,
            self.n_cmpl or 1,
            with_progress=bool(self.stream and self.return_progress),
            lines=lines,
        )


class CompletionBody(Common):
    """The body of a request for text."""

    prompt: TextPrompts


class InfillBody(Common):
    """The body of a request for what is missing."""

    may_infill: ClassVar[bool] = True

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[ExtraFile] | None = None
    prompt: str = ""


def read_completion(data: bytes, reply: AnswerHead) -> ParsedRequest:
    """Returns what a body asks for.

    Raises:
        ServeError: The body makes no sense.
    """
    body = read_body(CompletionBody, data)
    return _parsed(body, text_prompts(body.prompt))


def read_infill(data: bytes, reply: AnswerHead) -> ParsedRequest:
    """Returns what a body asks for.

    Raises:
        ServeError: The body makes no sense.
    """
    body = read_body(InfillBody, data)
    others = [(extra.filename, extra.text) for extra in body.input_extra or ()]
    prompt = InfillPrompt(body.input_prefix, body.input_suffix, body.prompt, others)
    return _parsed(body, [prompt])


def _parsed(body: Common, prompts: Sequence[Prompt]) -> ParsedRequest:
    fields = body.response_fields
    framer = CompletionFramer(body.model, fields) if body.stream else None
    return ParsedRequest(body.request(prompts), partial(_whole, body.model, fields), framer)


def _whole(model: str, fields: Sequence[str] | None, answer: Answer) -> Any:
    """Returns the document of an answer; a list of several."""
    replies = [
        _picked({**_ending(model, done), **_said(choice)}, fields)
        for choice, done in zip(answer.choices, answer.ends, strict=True)
    ]
    return replies[0] if len(replies) == 1 else replies


def _said(choice: Choice) -> dict[str, Any]:
    reply: dict[str, Any] = {"content": choice.text}
    if choice.tokens:
        reply["completion_probabilities"] = [
            {
                "id": token.chosen.token,
                "token": token.chosen.text,
                "logprob": token.chosen.logprob,
                "top_logprobs": [
                    {"id": likely.token, "token": likely.text, "logprob": likely.logprob}
                    for likely in token.top
                ],
            }
            for token in choice.tokens
        ]
    return reply


def _ending(model: str, done: Done) -> dict[str, Any]:
    counts = done.counts
    stop_type = "limit" if done.reason == "length" else "word" if done.stop_text else "eos"
    return {
        "index": done.index,
        "content": "",
        "model": model,
        "stop": True,
        "stop_type": stop_type,
        "stopping_word": done.stop_text,
        "truncated": False,
        "tokens_predicted": counts.n_new,
        "tokens_evaluated": counts.n_prompt,
        "tokens_cached": counts.n_prompt + counts.n_new - 1,
        "timings": openai.timings(counts),
    }


def _picked(document: dict[str, Any], fields: Sequence[str] | None) -> dict[str, Any]:
    """Returns the fields of ``document`` that are asked for; a slash leads into an object."""
    if not fields:
        return document
    picked: dict[str, Any] = {}
    for name in fields:
        value: Any = document
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            picked[name] = value
    return picked


class CompletionFramer:
    """Makes the events of a streamed answer."""

    def __init__(self, model: str, fields: Sequence[str] | None) -> None:
        self._model = model
        self._fields = fields

    def begin(self, n_prompt: int) -> Iterable[bytes]:
        """Returns nothing: every event has text."""
        return ()

    def of(self, event: Event) -> Iterable[bytes]:
        """Returns the event of one of ours."""
        if isinstance(event, TextDelta):
            choice = Choice(tokens=list(event.tokens), text=event.text)
            yield openai.sse({"index": event.index, "stop": False, **_said(choice)})
        elif isinstance(event, PromptProgress):
            said = {"index": event.index, "content": "", "stop": False}
            yield openai.sse({**said, **openai.progress(event)})
        elif isinstance(event, Done):
            yield openai.sse(_picked(_ending(self._model, event), self._fields))

    def end(self) -> Iterable[bytes]:
        """Returns nothing: the last event says that it is."""
        return ()

    def failed(self, problem: ServeError) -> Iterable[bytes]:
        """Returns an event that reports the problem."""
        yield openai.sse(openai.error(problem))


def props(offer: Offer, n_slots: int) -> Document:
    """Returns what is known of the server and one model."""
    return {
        "default_generation_settings": {"n_ctx": offer.manifest.target.context, "params": {}},
        "total_slots": n_slots,
        "model_alias": offer.name,
        "model_path": offer.name,
        "chat_template": offer.template,
        "chat_template_caps": {"supports_tool_calls": offer.has_template},
        "modalities": {"vision": False, "audio": False},
        "bos_token": "",
        "eos_token": "",
        "build_info": "edgedec",
    }


def slots(n_slots: int, n_busy: int, offer: Offer) -> list[Document]:
    """Returns what writes answers at once: a slot for each."""
    n_ctx = offer.manifest.target.context
    return [
        {"id": i, "id_task": -1, "n_ctx": n_ctx, "is_processing": i < n_busy}
        for i in range(n_slots)
    ]


COMPLETION = Endpoint("/completion", CompletionBody, read_completion, openai.error)
COMPLETIONS = Endpoint("/completions", CompletionBody, read_completion, openai.error)
INFILL = Endpoint("/infill", InfillBody, read_infill, openai.error)
