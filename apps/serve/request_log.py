"""The outermost layer of the server: each request is recorded, counted and, if wanted, logged."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgedec.apps.console.terminal import note
from edgedec.apps.serve.log_form import LogForm
from edgedec.apps.serve.metrics import Metrics
from edgedec.apps.serve.records import RECORD, RequestRecord


class RequestLog:
    """Gives each request a record, and reports it when the request has ended."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        form: LogForm | None,
        tell: Callable[[str], None] = note,
    ) -> None:
        """form: of the lines that ``tell`` is given; None for no lines."""
        self._app = app
        self._metrics = metrics
        self._form = form
        self._tell = tell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        record = RequestRecord(scope["method"], scope["path"])
        RECORD.set(record)

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            record.end()
            self._metrics.count(record)
            if self._form is not None:
                is_json = self._form is LogForm.JSON
                self._tell(record.json_line() if is_json else record.text_line())
