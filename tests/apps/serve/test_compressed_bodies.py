"""Bodies that clients compress."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest

BODY = json.dumps({"content": "One, two"}).encode()


def ask(server: Any, data: bytes, coding: str) -> tuple[int, Any]:
    status, answer = server.ask("POST", "/tokenize", data, {"Content-Encoding": coding})
    return status, answer


@pytest.mark.parametrize(
    ("coding", "data"),
    [("gzip", gzip.compress(BODY)), ("deflate", zlib.compress(BODY)), ("identity", BODY)],
)
def test_a_compressed_body_is_read(server: Any, coding: str, data: bytes) -> None:
    assert ask(server, data, coding) == server.ask("POST", "/tokenize", BODY)


@pytest.mark.parametrize(
    ("coding", "data", "status", "message"),
    [
        ("br", BODY, 415, "'br'"),
        ("gzip", BODY, 400, "not valid gzip"),
        ("gzip", gzip.compress(BODY)[:-9], 400, "not valid gzip"),
        ("gzip", gzip.compress(bytes(17 << 20)), 413, "more than"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    server: Any, coding: str, data: bytes, status: int, message: str
) -> None:
    found, answer = ask(server, data, coding)
    assert found == status
    assert message in answer["error"]["message"]
