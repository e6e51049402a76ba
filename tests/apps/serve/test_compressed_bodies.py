"""Bodies that clients compress."""

from __future__ import annotations

import gzip
import json
import zlib
from http.client import HTTPConnection
from typing import Any

import pytest

BODY = json.dumps({"content": "One, two"}).encode()


def ask(server: Any, data: bytes, coding: str) -> tuple[int, Any]:
    status, answer = server.ask("POST", "/tokenize", data, {"Content-Encoding": coding})
    return status, answer


@pytest.mark.parametrize(
    ("coding", "data"),
    [
        ("gzip", gzip.compress(BODY)),
        ("x-gzip", gzip.compress(BODY[:9]) + gzip.compress(BODY[9:])),
        ("gzip", b"".join(gzip.compress(BODY[i : i + 2]) for i in range(0, 24, 2))),
        ("deflate", zlib.compress(BODY)),
        ("identity", BODY),
    ],
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
        ("gzip", gzip.compress(bytes(9 << 20)) * 2, 413, "more than"),
        ("gzip", gzip.compress(BODY) + b"more", 400, "not valid gzip"),
        ("gzip", gzip.compress(BODY) + gzip.compress(BODY)[:-9], 400, "ends too early"),
        ("gzip", gzip.compress(b"") * 16 + gzip.compress(BODY), 400, "behind the end"),
        ("deflate", zlib.compress(BODY) * 2, 400, "behind the end"),
        ("gzip, gzip", gzip.compress(gzip.compress(BODY)), 415, "'gzip, gzip'"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    server: Any, coding: str, data: bytes, status: int, message: str
) -> None:
    found, answer = ask(server, data, coding)
    assert found == status
    assert message in answer["error"]["message"]


def test_a_coding_in_a_second_header_is_not_overlooked(server: Any) -> None:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    data = gzip.compress(gzip.compress(BODY))
    connection.putrequest("POST", "/tokenize")
    for _ in range(2):
        connection.putheader("Content-Encoding", "gzip")
    connection.putheader("Content-Length", str(len(data)))
    connection.endheaders(data)
    response = connection.getresponse()
    assert response.status == 415
    assert "'gzip, gzip'" in json.loads(response.read())["error"]["message"]
