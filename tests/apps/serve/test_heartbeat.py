"""Streams that say nothing for a while: signs of life, also while a model loads."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.stream import Stream
from edgedec.runtime.opening.load import load

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.e2e

MESSAGES = [{"role": "user", "content": "Say hello."}]


@pytest.mark.parametrize(
    ("path", "beat"),
    [
        ("/v1/chat/completions", b": still here"),
        ("/v1/responses", b": still here"),
        ("/v1/messages", b"event: ping"),
        ("/api/chat", b" "),
    ],
)
def test_a_stream_has_signs_of_life_while_its_model_loads(
    make_server: Any, path: str, beat: bytes
) -> None:
    may_load = threading.Event()

    def load_late(bundle: Path) -> Engine:
        assert may_load.wait(60)
        return load(bundle)

    server = make_server(load=load_late, heartbeat_s=0.05)
    key = "input" if path == "/v1/responses" else "messages"
    limit = {} if path in ("/v1/responses", "/api/chat") else {"max_tokens": 2}
    body = {"model": "smollm2", key: MESSAGES, "stream": True, **limit}
    if path == "/v1/responses":
        body["max_output_tokens"] = 2
    if path == "/api/chat":
        body["options"] = {"num_predict": 2}
    data = json.dumps(body).encode()
    try:
        with server.connect() as connection:
            head = f"POST {path} HTTP/1.0\r\nContent-Length: {len(data)}\r\n\r\n"
            connection.sendall(head.encode() + data)
            received = b""
            while received.partition(b"\r\n\r\n")[2].count(beat) < 3:
                received += connection.recv(4096)
            may_load.set()
            while part := connection.recv(65536):
                received += part
    finally:
        may_load.set()
    text = received.partition(b"\r\n\r\n")[2].decode()
    if path == "/api/chat":
        assert json.loads(text.splitlines()[-1])["done"]
        assert all(json.loads(line) for line in text.splitlines())
    else:
        events = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
        assert len(events) > 1
        assert all(json.loads(event) for event in events)


def test_a_response_that_has_begun_has_events_as_signs_of_life(
    make_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Codex ends a stream without events after five minutes, whatever comments it has."""
    may_write, write = threading.Event(), Stream.write

    def write_late(self: Stream, take: Any) -> Any:
        assert may_write.wait(60)
        return write(self, take)

    monkeypatch.setattr(Stream, "write", write_late)
    server = make_server(heartbeat_s=0.05)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    asked = {"model": "smollm2", "input": "Say hello.", "max_output_tokens": 4}
    events = []
    with client.responses.stream(**asked) as stream:
        for event in stream:
            events.append(event)
            if len(events) == 5:
                may_write.set()
    kinds = [event.type for event in events]
    assert kinds[:5] == ["response.created", *["response.in_progress"] * 4]
    assert kinds[-1] == "response.incomplete"
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_who_offers_http_2_is_answered_and_nothing_is_logged(
    server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": ""}
    assert server.ask("GET", "/health", headers=headers)[0] == 200
    assert not caplog.records
