"""What is known of one request: never its key, and nothing of prompts or answers."""

from __future__ import annotations

import hashlib
import json
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from edgedec.apps.serve.core import Counts

PREFIX_GROUP: ContextVar[str] = ContextVar("prefix_group", default="")
"""The group of the request that is being answered: it reuses only prompts of its own group.

How soon an answer comes would tell others what was asked before. See `GenerationConfig`.
"""

CLIENT_GONE = 499
"""The status of requests whose client went away before the answer was complete, as nginx's."""

_MAX_PATH = 80


@dataclass
class RequestRecord:
    """One request, filled in while it is answered.

    model: the offered model's name; empty if the request needs none, or names an unknown one.
    key: the number of its API key, from 1; None where no key is asked for, or it is wrong.
    status: of the outcome, also if an error comes after a stream has begun with 200.
    n_prompt, n_cached, n_new, n_drafted, n_accepted: as `Counts`, of all complete answers.
    first_s, total_s: until the first token of any answer, and until the end.
    """

    method: str
    path: str
    model: str = ""
    key: int | None = None
    status: int = 500
    n_prompt: int = 0
    n_cached: int = 0
    n_new: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    prompt_s: float = 0.0
    decode_s: float = 0.0
    first_s: float | None = None
    total_s: float = 0.0
    begun_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    _begun_s: float = field(default_factory=time.monotonic)

    def add(self, counts: Counts) -> None:
        """Adds what one answer took."""
        self.n_prompt += counts.n_prompt
        self.n_cached += counts.n_cached
        self.n_new += counts.n_new
        self.n_drafted += counts.n_drafted
        self.n_accepted += counts.n_accepted
        self.prompt_s += counts.prompt_ms / 1000
        self.decode_s += counts.decode_ms / 1000

    @property
    def n_computed(self) -> int:
        """Tokens of prompts that were not computed before."""
        return self.n_prompt - self.n_cached

    def note_token(self) -> None:
        """Notes the time of the first token, unless it is known; any thread may call it."""
        if self.first_s is None:
            self.first_s = time.monotonic() - self._begun_s

    def end(self) -> None:
        """Notes the time of the end."""
        self.total_s = time.monotonic() - self._begun_s

    def fields(self) -> dict[str, Any]:
        """Returns what the log says, by name. Units: seconds."""
        return {
            "time": self.begun_at.isoformat(timespec="milliseconds"),
            "method": self.method,
            "path": quote(self.path[:_MAX_PATH]),
            "status": self.status,
            "key": self.key,
            "model": self.model or None,
            "prompt_tokens": self.n_prompt,
            "cached_tokens": self.n_cached,
            "new_tokens": self.n_new,
            "first_s": None if self.first_s is None else round(self.first_s, 4),
            "total_s": round(self.total_s, 4),
        }

    def json_line(self) -> str:
        """Returns the fields as one line of JSON."""
        return json.dumps(self.fields())

    def text_line(self) -> str:
        """Returns the fields as ``name=value``, with a dash for what there is none of."""
        shown = {name: "-" if value is None else value for name, value in self.fields().items()}
        shown["model"] = quote(shown["model"], safe=":/.+@ ").replace(" ", "%20")
        return " ".join(f"{name}={value}" for name, value in shown.items())


RECORD: ContextVar[RequestRecord] = ContextVar("RECORD")
"""That of the request which the current task, or a thread that it started, handles."""


def group_of(key: str) -> str:
    """Returns the group of all who come with ``key``, which nobody can tell the key from."""
    return hashlib.sha256(b"edgedec prefix group\0" + key.encode()).hexdigest()[:32]
