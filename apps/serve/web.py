"""The server's addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache, partial
from itertools import takewhile
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from edgedec.apps.serve import openapi
from edgedec.apps.serve.api import (
    anthropic,
    llama_server,
    ollama,
    openai_chat,
    openai_completions,
    openai_responses,
)
from edgedec.apps.serve.api.endpoint import Endpoint
from edgedec.apps.serve.core import ServeError
from edgedec.apps.serve.guard import ErrorShape, Guard
from edgedec.apps.serve.handlers import ADDRESSES, Address, Handlers
from edgedec.apps.serve.page_files import page_routes
from edgedec.apps.serve.request_log import RequestLog
from edgedec.apps.serve.service import Service

ENDPOINTS = (
    openai_chat.ENDPOINT,
    openai_completions.ENDPOINT,
    openai_responses.ENDPOINT,
    anthropic.ENDPOINT,
    ollama.CHAT,
    ollama.GENERATE,
    llama_server.COMPLETION,
    llama_server.COMPLETIONS,
    llama_server.INFILL,
)


async def _describe(handlers: Handlers, request: Request) -> Response:
    return JSONResponse(_description())


@cache
def _description() -> dict[str, Any]:
    return openapi.document(ENDPOINTS, OTHERS)


OTHERS = (*ADDRESSES, Address("/openapi.json", _describe))

_LIKENESS = 0.85
"""How much an address has to be like another one to be meant, from 0 to 1."""

_MAX_PATH = 200


class AnswerEndpoint:
    """The address of one endpoint."""

    def __init__(self, service: Service, endpoint: Endpoint) -> None:
        self._service = service
        self._surface = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._service.answer(scope, receive, send, self._surface)


def make_web(service: Service) -> ASGIApp:
    """Returns the server's ASGI application."""
    answers = [
        Route(endpoint.path, AnswerEndpoint(service, endpoint), methods=["POST"])
        for endpoint in ENDPOINTS
    ]
    handlers = Handlers(service)
    others = [address.route(handlers) for address in OTHERS]
    paths = [route.path for route in (*answers, *others)]
    known = sorted(path for path in paths if path != "/" and "{" not in path)
    refused = dict.fromkeys((HTTPException, ServeError), partial(_refused, known))
    app = Starlette(routes=[*answers, *others, *page_routes()], exception_handlers=refused)
    guard = Guard(app, service.settings, error_shape, service.requests)
    return RequestLog(guard, service.metrics, service.settings.log)


_ERRORS: Mapping[str, ErrorShape] = {row.path: row.error for row in (*ENDPOINTS, *OTHERS)}


def error_shape(path: str) -> ErrorShape:
    """Returns how errors look at ``path``: as at the address that begins most like it."""
    path = re.sub("/+", "/", path)
    parts = path.split("/")
    return _ERRORS.get(path) or _ERRORS[max(_ERRORS, key=lambda known: _n_common(known, parts))]


def _n_common(path: str, parts: Sequence[str]) -> int:
    pairs = zip(path.split("/"), parts, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


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
    longer = [path for path in paths if path.endswith(words)]
    longer.sort(key=lambda path: not path.startswith("/v1/"))  # a base URL that lacks it
    like = get_close_matches(words, paths, 1, _LIKENESS)
    inner = [path for path in paths if words.startswith(path + "/") or words.endswith(path)]
    return next(iter([*longer, *like, *sorted(inner, key=len, reverse=True)]), "")
