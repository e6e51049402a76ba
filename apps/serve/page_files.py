"""The page to try models in a browser, and the files that it is made of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}

_FILES = MappingProxyType(
    {
        "/": "index.html",
        **{
            f"/page/{name}": name
            for name in (
                "page.css",
                "answers.js",
                "chat.js",
                "client.js",
                "conversations.js",
                "vendor/highlight.js",
                "vendor/marked.js",
                "vendor/purify.js",
            )
        },
    }
)

PATHS = frozenset(_FILES)
"""The addresses of the page's files."""

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
"""No script runs but these files, and HTML enters the page through DOMPurify alone."""


def page_routes() -> list[BaseRoute]:
    """Returns the addresses of the page's files."""
    return [Route(path, _handler(name), methods=["GET"]) for path, name in _FILES.items()]


def _handler(name: str) -> Callable[[Request], Awaitable[Response]]:
    media_type = _TYPES[name.rpartition(".")[2]]
    headers = {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
    }

    async def answer(request: Request) -> Response:
        data = files("edgedec.apps.serve").joinpath("page", name).read_bytes()
        return Response(data, media_type=media_type, headers=headers)

    return answer
