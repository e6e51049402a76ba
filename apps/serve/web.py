"""The server's addresses."""

from __future__ import annotations

from functools import cache, partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from edgedec.apps.serve import openapi
from edgedec.apps.serve.core import ServeError
from edgedec.apps.serve.guard import ErrorShape, Guard
from edgedec.apps.serve.routes import BODIES, Facts
from edgedec.apps.serve.service import Service
from edgedec.apps.serve.surfaces import (
    anthropic,
    llama_server,
    ollama,
    openai,
    openai_chat,
    openai_completions,
    openai_responses,
)
from edgedec.apps.serve.surfaces.surface import Surface

SURFACES = (
    openai_chat.SURFACE,
    openai_completions.SURFACE,
    openai_responses.SURFACE,
    anthropic.SURFACE,
    ollama.CHAT,
    ollama.GENERATE,
    llama_server.COMPLETION,
    llama_server.COMPLETIONS,
    llama_server.INFILL,
)


class AnswerEndpoint:
    """The address of one surface."""

    def __init__(self, service: Service, surface: Surface) -> None:
        self._service = service
        self._surface = surface

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._service.answer(scope, receive, send, self._surface)


def make_web(service: Service) -> ASGIApp:
    """Returns the server's ASGI application."""
    answers = [
        Route(surface.path, AnswerEndpoint(service, surface), methods=["POST"])
        for surface in SURFACES
    ]
    facts = Facts(service).routes()
    described = cache(partial(openapi.document, SURFACES, BODIES, facts, error_shape))

    async def describe(request: Request) -> Response:
        return JSONResponse(described())

    facts.append(Route("/openapi.json", describe))
    handlers = dict.fromkeys((HTTPException, ServeError), _refused)
    app = Starlette(routes=[*answers, *facts], exception_handlers=handlers)
    return Guard(app, service.settings, error_shape, service.requests)


def error_shape(path: str) -> ErrorShape:
    """Returns how errors look at ``path``."""
    if path.startswith("/api/"):
        return ollama.error
    return anthropic.error if path.startswith("/v1/messages") else openai.error


async def _refused(request: Request, error: Exception) -> Response:
    """Answers what no address takes, in the form of its interface."""
    problem = error if isinstance(error, ServeError) else _unknown(request, error)
    headers = getattr(error, "headers", None)  # which methods an address takes
    return JSONResponse(error_shape(request.url.path)(problem), problem.status, headers)


def _unknown(request: Request, error: Exception) -> ServeError:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path[:80]}"
    if error.status_code == 405:
        return ServeError(405, "invalid_request_error", f"{what}: another method is expected here")
    return ServeError(error.status_code, "not_found_error", f"there is no {what} here")
