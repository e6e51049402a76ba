"""Who is let in: the checks that come before a request is read."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgedec.apps.serve.api.endpoint import Document
from edgedec.apps.serve.core import ServeError
from edgedec.apps.serve.open_requests import OpenRequests
from edgedec.apps.serve.page_files import PATHS
from edgedec.apps.serve.records import CLIENT_GONE, PREFIX_GROUP, RECORD, group_of
from edgedec.apps.serve.responses import ClientGoneError, log_unexpected, send_problem
from edgedec.apps.serve.settings import ServerSettings

OPEN_PATHS = PATHS | {"/health", "/v1/health"}
"""Answered without a key: they tell nothing of anybody."""

ErrorShape = Callable[[ServeError], Document]


class Guard:
    """Refuses requests of strangers: by Host, by Origin, by key, and by number."""

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        error_shape: Callable[[str], ErrorShape],
        requests: OpenRequests,
    ) -> None:
        """error_shape: from a path to how errors look there. requests: those in progress."""
        self._app = app
        self._settings = settings
        self._error_shape = error_shape
        self._hosts = {"localhost", socket.gethostname().lower(), *settings.hosts}
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        if origin in self._settings.origins:
            send = _with_headers(send, _cors(origin))
        error_shape = self._error_shape(scope["path"])
        try:
            with self._requests.entered():
                if scope["method"] == "OPTIONS" and origin in self._settings.origins:
                    return await _allow(send, headers)
                self._check(scope["path"], headers)
                await self._app(scope, receive, send)
        except ServeError as problem:
            with suppress(RuntimeError):  # the answer had begun
                await send_problem(send, problem, error_shape)
        except ClientGoneError:
            RECORD.get().status = CLIENT_GONE  # nobody waits for an answer
        except Exception as error:  # its text may quote a prompt: the log gets its place alone
            log_unexpected(error)
            unexpected = ServeError(500, "server_error", f"unexpected {type(error).__name__}")
            with suppress(RuntimeError):  # the answer had begun
                await send_problem(send, unexpected, error_shape)

    def _check(self, path: str, headers: Headers) -> None:
        """Raises a ServeError if the request is a stranger's."""
        host = headers.get("host", "")
        if "host" in headers and not self._is_own(host):  # HTTP/1.0 may leave it out; browsers not
            raise ServeError(
                403,
                "permission_error",
                f"the Host header says {host[:80]!r}, which is not this server: use its address, "
                "or name the host with --allow-host",
            )
        origin = headers.get("origin")
        if origin is not None and not self._may_ask(origin, host):
            raise ServeError(
                403,
                "permission_error",
                f"web pages of {origin[:80]!r} may not ask: allow them with --cors",
            )
        if path not in OPEN_PATHS:
            key = self._checked_key(headers)
            if key and not self._settings.is_prefix_shared:
                PREFIX_GROUP.set(group_of(key))
        if len(self._requests) > self._settings.max_open:
            raise ServeError(
                503, "unavailable_error", f"{self._settings.max_open} requests are open: try later"
            )

    def _is_own(self, host: str) -> bool:
        """Whether ``host`` is an address, which no stranger's name can stand for, or known."""
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return name.lower() in self._hosts
        return True

    def _may_ask(self, origin: str, host: str) -> bool:
        """Whether a page of ``origin`` is the server's own, or was allowed."""
        return origin in (f"http://{host}", f"https://{host}", *self._settings.origins)

    def _checked_key(self, headers: Headers) -> str:
        """Returns the key that a request came with; empty where none is asked for."""
        keys = self._settings.api_keys
        if not keys:
            return ""
        sent = list(_given_keys(headers))
        numbers = [_number_among(key, keys) for key in sent]
        if not sent or not all(numbers):
            raise ServeError(
                401,
                "authentication_error",
                "the API key is missing or wrong: send it as Authorization: Bearer KEY",
                code="invalid_api_key",
            )
        RECORD.get().key = numbers[0]
        return sent[0]


def _given_keys(headers: Headers) -> Iterator[str]:
    """Yields every key that a request came with: each of them has to be right."""
    for value in headers.getlist("authorization"):
        scheme, *bearer = value.split(maxsplit=1) or [""]
        if scheme.lower() == "bearer":
            yield from bearer
    yield from filter(None, headers.getlist("x-api-key"))


def _number_among(key: str, keys: Sequence[str]) -> int:
    """Returns the place of ``key`` in ``keys``, from 1, or 0; its time says nothing of them."""
    secret = key.strip().encode()
    are_equal = [hmac.compare_digest(secret, key.encode()) for key in keys]
    return next((number for number, is_equal in enumerate(are_equal, 1) if is_equal), 0)


def _cors(origin: str) -> Mapping[str, str]:
    return {"access-control-allow-origin": origin, "vary": "Origin"}


async def _allow(send: Send, headers: Headers) -> None:
    """Answers a browser that asks whether a page of an allowed origin may ask."""
    header_names = headers.get("access-control-request-headers", "content-type, authorization")
    allowed = {
        "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
        "access-control-allow-headers": header_names,
        "access-control-max-age": "600",
    }
    allowed_headers = [(name.encode(), value.encode("latin-1")) for name, value in allowed.items()]
    await send({"type": "http.response.start", "status": 204, "headers": allowed_headers})
    await send({"type": "http.response.body", "body": b""})


def _with_headers(send: Send, added: Mapping[str, str]) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            more = [(name.encode(), value.encode("latin-1")) for name, value in added.items()]
            message = {**message, "headers": [*message.get("headers", []), *more]}
        await send(message)

    return with_headers
