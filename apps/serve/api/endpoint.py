"""The contract between an interface and the server that offers it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from edgedec.apps.serve.api.fields import Body
from edgedec.apps.serve.core import Answer, CoreRequest, Event, ServeError

Document = Mapping[str, Any]


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def json_bytes(document: Document | Sequence[Any]) -> bytes:
    """Returns ``document`` in ASCII: some clients end a line at U+2028 and its like."""
    return _ENCODER.encode(document).encode()


class Framer(Protocol):
    """Turns the events of one answer into pieces of a streamed response."""

    def begin(self, n_prompt: int) -> Iterable[bytes]:
        """Returns what comes before the first event. n_prompt: tokens of the prompt."""

    def of(self, event: Event) -> Iterable[bytes]:
        """Returns the pieces of one event."""

    def end(self) -> Iterable[bytes]:
        """Returns what comes behind the last event."""

    def failed(self, problem: ServeError) -> Iterable[bytes]:
        """Returns what reports a problem that came after the beginning."""


@dataclass(frozen=True)
class ParsedRequest:
    """A request as its interface understood it.

    whole: makes the document of an answer that is not streamed. framer: of a streamed answer; None
    where the client wants it whole. beat: makes signs of life in a stream that has begun, those of
    the interface where it is None.
    """

    request: CoreRequest
    whole: Callable[[Answer], Document]
    framer: Framer | None = None
    beat: Callable[[], Iterable[bytes]] | None = None


@dataclass(frozen=True)
class AnswerHead:
    """What the server puts into an answer: its id, its time in seconds since 1970."""

    id: str
    created: int


@dataclass(frozen=True)
class Endpoint:
    """One address that answers are asked at.

    body: what `read` reads. read: from the body to what is asked. error: the document of a problem.
    media_type: of streamed answers. beat: what says in a silent stream that it goes on; by default
    a comment, which clients of server-sent events skip.
    """

    path: str
    body: type[Body]
    read: Callable[[bytes, AnswerHead], ParsedRequest]
    error: Callable[[ServeError], Document]
    media_type: str = "text/event-stream"
    beat: bytes = b": still here\n\n"
