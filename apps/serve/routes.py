"""What the server says besides answers: models, tokens, templates, its own state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from edgedec.apps.serve.metrics import MEDIA_TYPE
from edgedec.apps.serve.prompts import chat_text, n_chat_tokens
from edgedec.apps.serve.records import RECORD
from edgedec.apps.serve.responses import read_body
from edgedec.apps.serve.service import Service
from edgedec.apps.serve.surfaces import anthropic, llama_server, ollama, openai_models
from edgedec.apps.serve.surfaces.embeddings import EmbedBody, EmbeddingsBody, OldEmbedBody
from edgedec.apps.serve.surfaces.fields import Body
from edgedec.apps.serve.surfaces.fields import read_body as read_fields
from edgedec.apps.serve.surfaces.openai_chat import ChatBody, chat_prompt
from edgedec.apps.serve.surfaces.surface import json_bytes
from edgedec.models.errors import SessionError
from edgedec.runtime.engine.embeddings import embedding_tokens
from edgedec.runtime.engine.engine import Engine

IsOver = Callable[[], bool]
Handler = Callable[[Request], Awaitable[Response]]


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


BODIES: Mapping[str, type[Body]] = {
    "/api/show": NamedBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    "/apply-template": ChatBody,
    "/v1/messages/count_tokens": anthropic.CountBody,
    "/v1/embeddings": EmbeddingsBody,
    "/api/embed": EmbedBody,
    "/api/embeddings": OldEmbedBody,
}
"""What the addresses read that are asked by POST."""


class Facts:
    """The handlers of all these addresses."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._shelf = service.shelf

    def routes(self) -> list[BaseRoute]:
        """Returns the addresses."""
        answers: dict[str, Handler] = {
            "/health": self.health,
            "/v1/health": self.health,
            "/metrics": self.metrics,
            "/props": self.props,
            "/v1/props": self.props,
            "/slots": self.slots,
            "/v1/models": self.models,
            "/models": self.models,
            "/v1/models/{name:path}": self.model,
            "/api/version": self.version,
            "/api/tags": self.tags,
            "/api/ps": self.running,
        }
        asked: dict[str, Handler] = {
            "/api/show": self.show,
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
            "/apply-template": self.template,
            "/v1/messages/count_tokens": self.count_tokens,
            "/v1/embeddings": self.embeddings,
            "/api/embed": self.embed,
            "/api/embeddings": self.old_embed,
        }
        assert asked.keys() == BODIES.keys()
        return [
            *(Route(path, handler, methods=["GET"]) for path, handler in answers.items()),
            *(Route(path, handler, methods=["POST"]) for path, handler in asked.items()),
        ]

    async def health(self, request: Request) -> Response:
        """Says that the server runs."""
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """Answers with all counters."""
        service = self._service
        text = service.metrics.text(service.n_running, len(self._shelf.loaded))
        return Response(text, media_type=MEDIA_TYPE)

    async def props(self, request: Request) -> Response:
        """Tells of the server and one model."""
        offer = self._shelf.find(request.query_params.get("model", ""))
        return JSONResponse(llama_server.props(offer, self._service.settings.max_parallel))

    async def slots(self, request: Request) -> Response:
        """Tells what is being answered."""
        service, offer = self._service, self._shelf.find("")
        n_slots = service.settings.max_parallel
        return JSONResponse(llama_server.slots(n_slots, service.n_running, offer))

    async def models(self, request: Request) -> Response:
        """Lists the models."""
        return JSONResponse(openai_models.listing(self._shelf.offers, self._shelf.loaded))

    async def model(self, request: Request) -> Response:
        """Tells of one model."""
        offer = self._shelf.find(request.path_params["name"])
        return JSONResponse(openai_models.entry(offer, self._shelf.loaded))

    async def version(self, request: Request) -> Response:
        """Tells which version of Ollama this is like."""
        return JSONResponse({"version": ollama.VERSION})

    async def tags(self, request: Request) -> Response:
        """Lists the models as Ollama does."""
        return JSONResponse(ollama.tags(self._shelf.offers))

    async def running(self, request: Request) -> Response:
        """Lists the models in memory as Ollama does."""
        return JSONResponse(ollama.running(self._shelf.loaded))

    async def show(self, request: Request) -> Response:
        """Tells of one model as Ollama does."""
        body = read_fields(NamedBody, await self._body(request))
        return JSONResponse(ollama.shown(self._shelf.find(body.model or body.name)))

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
        texts = [prompt.text for prompt in prompts]
        tokens = embedding_tokens(engine.loaded, texts, options)
        vectors = engine.embed(tokens, options.pooling, is_over, n_dimensions=options.n_dimensions)
        n_tokens = list(map(len, tokens))
        RECORD.get().n_prompt = sum(n_tokens)
        return body.document(n_tokens, vectors)

    return work
