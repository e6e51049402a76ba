"""Who is let in, and how much of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgedec.apps.serve.settings import ServerSettings
from edgedec.models.errors import ConfigError

pytestmark = pytest.mark.robustness

CHAT = "/v1/chat/completions"


def body(**fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": "Say hello."}
    return {"model": "smollm2", "messages": [message], "max_tokens": 2, **fields}


def received(connection: Any) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "", "localhost.evil.example"]
)
def test_a_name_that_is_not_the_server_s_is_refused(server: Any, host: str) -> None:
    status, document = server.ask("GET", "/v1/models", headers={"Host": host})
    assert (status, document["error"]["type"]) == (403, "permission_error")


@pytest.mark.parametrize("host", ["localhost", "localhost:9", "127.0.0.1:1", "[::1]:8080", "[::1]"])
def test_addresses_and_this_machine_are_answered(server: Any, host: str) -> None:
    assert server.ask("GET", "/v1/models", headers={"Host": host})[0] == 200


def test_a_host_may_be_allowed(make_server: Any) -> None:
    server = make_server(hosts=("models.example",))
    assert server.ask("GET", "/v1/models", headers={"Host": "models.example:80"})[0] == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1"])
def test_pages_of_others_may_not_ask(server: Any, origin: str) -> None:
    status, document = server.ask("POST", CHAT, body(), {"Origin": origin})
    assert (status, document["error"]["type"]) == (403, "permission_error")


def test_the_server_s_own_page_may_ask(server: Any) -> None:
    assert server.ask("POST", CHAT, body(), {"Origin": server.url})[0] == 200


def test_an_origin_may_be_allowed(make_server: Any) -> None:
    server = make_server(origins=("https://notes.example",))
    asked = {"Origin": "https://notes.example", "Access-Control-Request-Method": "POST"}
    status, headers, _ = server.ask_raw("OPTIONS", CHAT, None, asked)
    assert (status, headers["access-control-allow-origin"]) == (204, "https://notes.example")
    status, headers, _ = server.ask_raw("POST", CHAT, body(), {"Origin": "https://notes.example"})
    assert (status, headers["access-control-allow-origin"]) == (200, "https://notes.example")
    status, headers, _ = server.ask_raw("OPTIONS", CHAT, None, {"Origin": "https://evil.example"})
    assert status == 403
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer"}, {"Authorization": "Bearer no"}, {"x-api-key": "ä"}]
)
def test_a_key_is_asked_for(make_server: Any, headers: dict[str, str]) -> None:
    server = make_server(api_keys=("secret", "other"))
    status, document = server.ask("GET", "/v1/models", headers=headers)
    assert (status, document["error"]["type"]) == (401, "authentication_error")
    for right in ({"Authorization": "Bearer other"}, {"x-api-key": "secret"}):
        assert server.ask("GET", "/v1/models", headers=right)[0] == 200
    assert server.ask("GET", "/health")[0] == 200


def test_other_machines_need_a_key() -> None:
    with pytest.raises(ConfigError, match="give a key by --api-key-file FILE"):
        ServerSettings(host="0.0.0.0")
    ServerSettings(host="0.0.0.0", api_keys=("secret",))
    ServerSettings(host="0.0.0.0", is_open=True)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"model": "smollm2"}',
        b'{"messages": "hello"}',
        b'{"messages": [{"role": 1}]}',
        b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
        b'{"messages": ' + b"[" * 100_000,
        b'{"messages": [], "temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "\\ud83d"}]}',  # half a character
    ],
)
def test_what_is_no_request_is_refused_in_the_api_s_words(server: Any, data: bytes) -> None:
    status, document = server.ask("POST", CHAT, data)
    assert status == 400
    assert document["error"]["type"] == "invalid_request_error"
    assert "Traceback" not in json.dumps(document)


def test_unknown_fields_are_ignored(server: Any) -> None:
    assert server.ask("POST", CHAT, body(store=True, metadata={"a": 1}, user="me"))[0] == 200


def test_other_addresses_and_methods(server: Any) -> None:
    status, document = server.ask("GET", "/v1/nothing")
    assert (status, document["error"]["type"]) == (404, "not_found_error")
    status, document = server.ask("GET", CHAT)
    assert (status, document["error"]["type"]) == (405, "invalid_request_error")


def test_a_body_has_a_limit(make_server: Any) -> None:
    server = make_server(max_body_bytes=1000)
    status, document = server.ask("POST", CHAT, body(user="a" * 1000))
    assert (status, document["error"]["type"]) == (413, "invalid_request_error")
    head = "POST {} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(head.format(CHAT).encode() + b"3e9\r\n" + b" " * 1001 + b"\r\n")
        assert b" 413 " in connection.recv(65536)


def test_headers_have_a_limit(make_server: Any) -> None:
    server = make_server(max_header_bytes=2000)
    with server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 10_000)
        assert b" 400 " in received(connection)


@pytest.mark.slow
def test_headers_that_do_not_come_are_not_waited_for(make_server: Any) -> None:
    server = make_server(header_s=0.2)
    for begun in (b"", b"GET /health HTTP/1.1\r\nHos"):
        with server.connect() as connection:
            connection.sendall(begun)
            assert received(connection) == b""
    with server.connect() as connection:  # nor those of a second request
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in connection.recv(65536)
        connection.sendall(b"GET /hea")
        assert received(connection).endswith(b"")
    assert server.ask("GET", "/health")[0] == 200


def test_a_body_that_does_not_come_is_not_waited_for(make_server: Any) -> None:
    server = make_server(body_s=0.2)
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{" % CHAT.encode()
    with server.connect() as connection:
        connection.sendall(head)
        assert b" 408 " in connection.recv(65536)


def test_an_answer_has_a_limit_of_time(make_server: Any) -> None:
    server = make_server(request_s=0.5)
    endless = body(max_tokens=8000, logit_bias={"0": -100, "2": -100})  # without its stop tokens
    status, document = server.ask("POST", CHAT, endless)
    assert (status, document["error"]["type"]) == (504, "timeout_error")


def test_an_answer_has_a_limit_of_tokens(make_server: Any) -> None:
    server = make_server(max_new_tokens=3)
    _, document = server.ask("POST", CHAT, body(max_tokens=100))
    assert document["usage"]["completion_tokens"] == 3


def test_what_an_answer_follows_has_a_limit(make_server: Any) -> None:
    server = make_server(max_constraint_bytes=1000)
    schema = {"type": "string", "description": "a" * 1000}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    function = {"name": "f", "parameters": {**schema, "type": "object"}}
    tools = [{"type": "function", "function": function}]
    for fields in ({"response_format": wanted}, {"tools": tools}, {"regex": "a" * 1001}):
        status, document = server.ask("POST", CHAT, body(**fields))
        assert (status, document["error"]["type"]) == (400, "invalid_request_error")
        assert "expected at most 1000: make it smaller" in document["error"]["message"]
    tool = {"name": "f", "input_schema": function["parameters"]}
    status, document = server.ask("POST", "/v1/messages", body(tools=[tool]))
    assert (status, document["type"]) == (400, "error")


def test_requests_above_a_number_are_refused(make_server: Any, until: Any) -> None:
    server = make_server(max_open=1)
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n" % CHAT.encode()
    with server.connect() as connection:
        connection.sendall(head)
        until(lambda: server.ask("POST", CHAT, body())[0] == 503)
    until(lambda: server.ask("POST", CHAT, body())[0] == 200)


@pytest.mark.parametrize("is_shared", [False, True])
def test_keys_share_prompts_only_if_asked(make_server: Any, is_shared: bool) -> None:
    """How many tokens were computed before says what others asked, as the time to answer does."""
    server = make_server(api_keys=("red", "blue"), is_prefix_shared=is_shared)
    long = [{"role": "user", "content": "Tell me about the sea and the sky. " * 20}]

    def cached(key: str) -> int:
        asked = {"Authorization": f"Bearer {key}"}
        status, document = server.ask("POST", CHAT, body(messages=long), asked)
        assert status == 200
        found: int = document["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    assert cached("red") == 0
    assert cached("red") > 100
    assert (cached("blue") > 100) == is_shared
    assert cached("blue") > 100
