"""The server's addresses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
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
from edgedec.apps.serve.page_files import page_routes
from edgedec.apps.serve.request_log import RequestLog
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

_LIKENESS = 0.85
"""How much an address has to be like another one to be meant, from 0 to 1."""

_MAX_PATH = 200


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
    paths = [route.path for route in (*answers, *facts) if isinstance(route, Route)]
    known = sorted(path for path in paths if path != "/" and "{" not in path)
    handlers = dict.fromkeys((HTTPException, ServeError), partial(_refused, known))
    app = Starlette(routes=[*answers, *facts, *page_routes()], exception_handlers=handlers)
    guard = Guard(app, service.settings, error_shape, service.requests)
    return RequestLog(guard, service.metrics, service.settings.log)


def error_shape(path: str) -> ErrorShape:
    """Returns how errors look at ``path``."""
    path = re.sub("/+", "/", path)
    if path.startswith("/api/"):
        return ollama.error
    return anthropic.error if path.startswith("/v1/messages") else openai.error


async def _refused(paths: Sequence[str], request: Request, error: Exception) -> Response:
    """Answers what no address takes, in the form of its interface. paths: the addresses."""
    path = request.url.path
    near = near_address(path[:_MAX_PATH], paths) or path
    problem = error if isinstance(error, ServeError) else _unknown(request, error, near)
    headers = getattr(error, "headers", None)  # which methods an address takes
    return JSONResponse(error_shape(near)(problem), problem.status, headers)


def _unknown(request: Request, error: Exception, near: str) -> ServeError:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path[:80]}"
    if error.status_code == 405:
        return ServeError(405, "invalid_request_error", f"{what}: another method is expected here")
    hint = f"; did you mean {near}?" if near != request.url.path else ""
    return ServeError(error.status_code, "not_found_error", f"there is no {what} here{hint}")


def near_address(path: str, paths: Sequence[str]) -> str:
    """Returns the one of ``paths`` that ``path`` was probably meant to be, or nothing."""
    words = re.sub("(/v1)+(?=/|$)", "/v1", re.sub("/+", "/", path.lower())).rstrip("/")
    if not words:
        return ""
    longer = [one for one in paths if one.endswith(words)]
    longer.sort(key=lambda one: not one.startswith("/v1/"))  # a base URL that lacks it
    like = get_close_matches(words, paths, 1, _LIKENESS)
    inner = [one for one in paths if words.startswith(one + "/") or words.endswith(one)]
    return next(iter([*longer, *like, *sorted(inner, key=len, reverse=True)]), "")
