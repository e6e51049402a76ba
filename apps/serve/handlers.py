"""What the server says besides answers: models, tokens, templates, its own state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgedec.apps.serve.api import anthropic, llama_server, ollama, openai, openai_models
from edgedec.apps.serve.api.embeddings import EmbedBody, EmbeddingsBody, OldEmbedBody
from edgedec.apps.serve.api.endpoint import Document, json_bytes
from edgedec.apps.serve.api.fields import Body
from edgedec.apps.serve.api.fields import read_body as read_fields
from edgedec.apps.serve.api.openai_chat import ChatBody, chat_prompt
from edgedec.apps.serve.core import ServeError
from edgedec.apps.serve.metrics import MEDIA_TYPE
from edgedec.apps.serve.prompts import chat_text, n_chat_tokens
from edgedec.apps.serve.records import RECORD
from edgedec.apps.serve.responses import read_body
from edgedec.apps.serve.service import Service
from edgedec.models.errors import SessionError
from edgedec.runtime.engine.embeddings import embedding_tokens
from edgedec.runtime.engine.engine import Engine

IsOver = Callable[[], bool]


class TokenizeBody(Body):
    """Text to be turned into tokens."""

    model: str = ""
    content: str
    add_special: bool = False
    parse_special: bool = False
    with_pieces: bool = False


class DetokenizeBody(Body):
    """Tokens to be turned into text."""

    model: str = ""
    tokens: list[int]


class NamedBody(Body):
    """The name of a model; older clients say ``name``."""

    model: str = ""
    name: str = ""


class Handlers:
    """What answers at the addresses of `ADDRESSES`."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = service.registry

    async def health(self, request: Request) -> Response:
        """Says that the server runs."""
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Answers with all counters."""
        service = self._service
        text = service.metrics.text(service.n_running, len(self._registry.loaded))
        return Response(text, media_type=MEDIA_TYPE)

    async def props(self, request: Request) -> Response:
        """Tells of the server and one model."""
        offer = self._registry.find(request.query_params.get("model", ""))
        return JSONResponse(llama_server.props(offer, self._service.settings.max_parallel))

    async def slots(self, request: Request) -> Response:
        """Tells what is being answered."""
        service, offer = self._service, self._registry.find("")
        n_slots = service.settings.max_parallel
        return JSONResponse(llama_server.slots(n_slots, service.n_running, offer))

    async def models(self, request: Request) -> Response:
        """Lists the models."""
        return JSONResponse(openai_models.listing(self._registry.offers, self._registry.loaded))

    async def model(self, request: Request) -> Response:
        """Tells of one model."""
        offer = self._registry.find(request.path_params["name"])
        return JSONResponse(openai_models.entry(offer, self._registry.loaded))

    async def version(self, request: Request) -> Response:
        """Tells which version of Ollama this is like."""
        return JSONResponse({"version": ollama.VERSION})

    async def tags(self, request: Request) -> Response:
        """Lists the models as Ollama does."""
        return JSONResponse(ollama.tags(self._registry.offers))

    async def running(self, request: Request) -> Response:
        """Lists the models in memory as Ollama does."""
        return JSONResponse(ollama.running(self._registry.loaded))

    async def show(self, request: Request) -> Response:
        """Tells of one model as Ollama does."""
        body = read_fields(NamedBody, await self._body(request))
        return JSONResponse(ollama.shown(self._registry.find(body.model or body.name)))

    async def tokenize(self, request: Request) -> Response:
        """Turns text into tokens."""
        body = read_fields(TokenizeBody, await self._body(request))

        def work(engine: Engine, is_over: IsOver) -> Any:
            encoder = engine.encoder
            encode = encoder.encode_marks if body.parse_special else engine.tokenizer.encode
            tokens = [*(encoder.opening if body.add_special else ()), *encode(body.content)]
            if not body.with_pieces:
                return {"tokens": tokens}
            decode = engine.tokenizer.decode
            return {"tokens": [{"id": token, "piece": decode([token])} for token in tokens]}

        return await self._worked(request, body.model, work)

    async def detokenize(self, request: Request) -> Response:
        """Turns tokens into text."""
        body = read_fields(DetokenizeBody, await self._body(request))

        def work(engine: Engine, is_over: IsOver) -> Any:
            if odd := [t for t in body.tokens if not 0 <= t < engine.model.vocab_size]:
                raise SessionError(f"tokens has {odd[0]}, which is not a token of this model")
            return {"content": engine.tokenizer.decode(body.tokens)}

        return await self._worked(request, body.model, work)

    async def template(self, request: Request) -> Response:
        """Writes a conversation by the model's template."""
        body = read_fields(ChatBody, await self._body(request))
        prompt = chat_prompt(body)
        return await self._worked(
            request, body.model, lambda engine, is_over: {"prompt": chat_text(engine, prompt)}
        )

    async def count_tokens(self, request: Request) -> Response:
        """Counts the tokens of Anthropic's messages."""
        model, prompt = anthropic.read_count(await self._body(request))

        def work(engine: Engine, is_over: IsOver) -> Any:
            return {"input_tokens": n_chat_tokens(engine, prompt)}

        return await self._worked(request, model, work)

    async def embeddings(self, request: Request) -> Response:
        """Turns texts into vectors, as OpenAI does."""
        body = read_fields(EmbeddingsBody, await self._body(request))
        return await self._worked(request, body.model, _embedding(body))

    async def embed(self, request: Request) -> Response:
        """Turns texts into vectors, as Ollama does."""
        body = read_fields(EmbedBody, await self._body(request))
        return await self._worked(
            request, body.model, _embedding(body), keep_alive_s=body.keep_alive_s
        )

    async def old_embed(self, request: Request) -> Response:
        """Turns one text into a vector, as Ollama did first."""
        body = read_fields(OldEmbedBody, await self._body(request))
        return await self._worked(
            request, body.model, _embedding(body), keep_alive_s=body.keep_alive_s
        )

    async def _body(self, request: Request) -> bytes:
        return await read_body(request.scope, request.receive, self._service.settings)

    async def _worked(
        self, request: Request, model: str, work: Callable[[Engine, IsOver], Any], **more: Any
    ) -> Response:
        """Answers with what ``work`` makes of an engine."""
        document = await self._service.worked(request.receive, model, work, **more)
        return Response(json_bytes(document), media_type="application/json")


def _embedding(
    body: EmbeddingsBody | EmbedBody | OldEmbedBody,
) -> Callable[[Engine, IsOver], Any]:
    """Returns what turns the texts of ``body`` into vectors."""
    prompts = body.prompts()

    def work(engine: Engine, is_over: IsOver) -> Any:
        options = body.options_of(engine.embedding)
        if not prompts:
            return body.document([], np.zeros((0, 0), np.float32))
        texts = [prompt.text for prompt in prompts]
        tokens = embedding_tokens(engine.loaded, texts, options)
        vectors = engine.embed(tokens, options.pooling, is_over, n_dimensions=options.n_dimensions)
        n_tokens = list(map(len, tokens))
        RECORD.get().n_prompt = sum(n_tokens)
        return body.document(n_tokens, vectors)

    return work


@dataclass(frozen=True)
class Address:
    """An address besides those that answers are asked at.

    error: the document of a problem. body: what is read there; with one the method is POST.
    """

    path: str
    handler: Callable[[Handlers, Request], Awaitable[Response]]
    error: Callable[[ServeError], Document] = openai.error
    body: type[Body] | None = None

    def route(self, handlers: Handlers) -> Route:
        """Returns the route to it."""
        method = "GET" if self.body is None else "POST"
        return Route(self.path, partial(self.handler, handlers), methods=[method])


ADDRESSES = (
    Address("/health", Handlers.health),
    Address("/v1/health", Handlers.health),
    Address("/metrics", Handlers.metrics),
    Address("/props", Handlers.props),
    Address("/v1/props", Handlers.props),
    Address("/slots", Handlers.slots),
    Address("/v1/models", Handlers.models),
    Address("/models", Handlers.models),
    Address("/v1/models/{name:path}", Handlers.model),
    Address("/api/version", Handlers.version, ollama.error),
    Address("/api/tags", Handlers.tags, ollama.error),
    Address("/api/ps", Handlers.running, ollama.error),
    Address("/api/show", Handlers.show, ollama.error, NamedBody),
    Address("/tokenize", Handlers.tokenize, body=TokenizeBody),
    Address("/detokenize", Handlers.detokenize, body=DetokenizeBody),
    Address("/apply-template", Handlers.template, body=ChatBody),
    Address(
        "/v1/messages/count_tokens", Handlers.count_tokens, anthropic.error, anthropic.CountBody
    ),
    Address("/v1/embeddings", Handlers.embeddings, body=EmbeddingsBody),
    Address("/api/embed", Handlers.embed, ollama.error, EmbedBody),
    Address("/api/embeddings", Handlers.old_embed, ollama.error, OldEmbedBody),
)
