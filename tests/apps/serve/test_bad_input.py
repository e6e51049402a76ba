"""Requests that make no sense, at every address: an error of the interface's own form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgedec.apps.serve import web

pytestmark = pytest.mark.robustness

MESSAGES = [{"role": "user", "content": "Say hello."}]
OLLAMA = {"model": "smollm2", "stream": False, "options": {"num_predict": 2}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 2},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 2},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2},
    "/api/chat": {**OLLAMA, "messages": MESSAGES},
    "/api/generate": {**OLLAMA, "prompt": "Hello"},
    "/completion": {"prompt": "Hello", "n_predict": 2},
    "/completions": {"prompt": "Hello", "n_predict": 2},
    "/infill": {"input_prefix": "a", "n_predict": 2},
    "/api/show": {"model": "smollm2"},
    "/tokenize": {"content": "Hello"},
    "/detokenize": {"tokens": [1, 2]},
    "/apply-template": {"messages": MESSAGES},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/embeddings": {"input": "Hello"},
    "/api/embed": {"model": "smollm2", "input": "Hello"},
    "/api/embeddings": {"model": "smollm2", "prompt": "Hello"},
}
ANSWERS = [endpoint.path for endpoint in web.ENDPOINTS]
CANNOT = {"/infill"}  # SmolLM2 has no tokens for it


def reported(path: str, document: Any) -> str:
    """Returns what an error says, whose form has to be that of its interface."""
    assert "Traceback" not in json.dumps(document)
    if path.startswith("/api/"):
        return str(document["error"])
    if path.startswith("/v1/messages"):
        assert document["type"] == "error"
    assert document["error"]["type"]
    return str(document["error"]["message"])


def refused(server: Any, path: str, body: Any, status: int = 400) -> str:
    found, document = server.ask("POST", path, body)
    assert found == status, document
    return reported(path, document)


def test_every_address_is_here(server: Any) -> None:
    described = server.ask("GET", "/openapi.json")[1]["paths"]
    assert {path for path, verbs in described.items() if "post" in verbs} == BODIES.keys()


@pytest.mark.parametrize("path", BODIES)
def test_what_is_no_object_of_json(server: Any, path: str) -> None:
    broken = [b"", b"{", b"[]", b"null", b'"a"', b"\xff\xfe", b'{"model": "\xff"}', b"[" * 100_000]
    for data in broken:
        assert refused(server, path, data)
    assert refused(server, path, b'{"model": ' + b'{"a":' * 10_000)


@pytest.mark.parametrize("path", BODIES)
def test_wrong_types_are_named(server: Any, path: str) -> None:
    for name in BODIES[path].keys() - {"stream"}:
        for wrong in (7.5, True, [None], *([] if name == "options" else [{"a": [1]}])):
            words = refused(server, path, {**BODIES[path], name: wrong})
            assert words.startswith((name, "the prompt is")), words


@pytest.mark.parametrize("path", sorted(BODIES.keys() - CANNOT))
def test_fields_that_nobody_knows_are_ignored(server: Any, path: str) -> None:
    odd = {"frobnicate": {"a": [1]}, "user": "me", "metadata": {"b": None}, "": 0}
    assert server.ask("POST", path, {**BODIES[path], **odd})[0] == 200


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "name", ["gpt-9", "../smollm2.edgedec", "/etc/passwd", "smollm2\0", "Ä" * 999]
)
def test_models_that_are_not_offered(server: Any, path: str, name: str) -> None:
    if path == "/infill":
        return  # it finds the model before it knows that there is nothing to fill in
    assert "there is: smollm2" in refused(server, path, {**BODIES[path], "model": name}, 404)


@pytest.mark.parametrize("path", ANSWERS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("top_p", -1.0),
        ("top_k", -(10**30)),
        ("seed", "a"),
        ("method", "magic"),
        ("verifier", "magic"),
        ("prefill", "magic"),
        ("draft_len", -1),
        ("draft_len", 10**30),
        ("switch", {"magic": 1}),
        ("regex", "(" * 20),
        ("regex", "a{99999999}"),
        ("grammar", "start: nothing"),
    ],
)
def test_numbers_and_names_out_of_range(server: Any, path: str, field: str, value: Any) -> None:
    body = BODIES[path]
    is_nested = path.startswith("/api/")
    changed = (
        {"options": {**body.get("options", {}), field: value}} if is_nested else {field: value}
    )
    assert refused(server, path, {**body, **changed})


@pytest.mark.parametrize("path", sorted(set(ANSWERS) - CANNOT))
@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1" * 5000])
def test_numbers_that_are_none(server: Any, path: str, number: bytes) -> None:
    name = b"options" if path.startswith("/api/") else b"temperature"
    value = b'{"temperature": %b}' % number if name == b"options" else number
    data = json.dumps(BODIES[path]).encode()[:-1] + b', "%b": %b}' % (name, value)
    assert "temperature" in refused(server, path, data) or b"1" * 50 in number


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
def test_a_prompt_beyond_the_context_tells_both_numbers(
    server: Any, path: str, stream: bool
) -> None:
    messages = [{"role": "user", "content": "hello " * 9000}]
    body = {**BODIES[path], "messages": messages, "stream": stream}
    status, document = server.ask("POST", path, body)
    error = document if path.startswith("/api/") else document["error"]
    assert (status, error["n_ctx"]) == (400, 8192)
    assert error["n_prompt_tokens"] > 8192
    is_anthropic = path == "/v1/messages"
    expected = "invalid_request_error" if is_anthropic else "exceed_context_size_error"
    assert error["type"] == expected


SCHEMAS: list[Any] = [
    {"type": "nothing"},
    {"type": "string", "pattern": "("},
    {"$ref": "#/$defs/none"},
    {"$ref": "https://example.com/schema.json"},
    {"type": "array", "minItems": -1},
    {"anyOf": []},
    False,
]


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("stream", [False, True])
def test_schemas_that_cannot_be_compiled(server: Any, schema: Any, stream: bool) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = BODIES["/v1/chat/completions"]
    assert refused(
        server, "/v1/chat/completions", {**body, "response_format": wanted, "stream": stream}
    )
    assert (
        refused(server, "/api/chat", {**BODIES["/api/chat"], "format": schema, "stream": stream})
        or not schema
    )
    tool = {"name": "f", "parameters": {"properties": {"a": schema}, "required": ["a"]}}
    asked = {**body, "tools": [{"type": "function", "function": tool}], "stream": stream}
    status, headers, _ = server.ask_raw("POST", "/v1/chat/completions", asked)
    assert status == 200
    assert headers["x-edgedec-loosened"].startswith("f: ")


def test_calls_that_are_cut_off_say_so_everywhere(server: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    body = {"messages": MESSAGES, "max_tokens": 20, "tool_choice": "required", "temperature": 0}
    function = {"name": "f", "parameters": schema}
    body["tools"] = [{"type": "function", "function": function}]
    choice = server.ask("POST", "/v1/chat/completions", body)[1]["choices"][0]
    assert choice["finish_reason"] == "length"
    asked = {"input": "hello", "max_output_tokens": 20, "tool_choice": "required"}
    asked["tools"] = [{"type": "function", **function}]
    answer = server.ask("POST", "/v1/responses", {**asked, "temperature": 0})[1]
    assert answer["status"] == "incomplete"
    assert answer["output"][-1]["status"] == "incomplete"
    tools = [{"name": "f", "input_schema": schema}]
    asked = {"messages": MESSAGES, "max_tokens": 20, "tools": tools, "tool_choice": {"type": "any"}}
    answer = server.ask("POST", "/v1/messages", {**asked, "temperature": 0})[1]
    assert answer["stop_reason"] == "max_tokens"
    assert all(isinstance(b["input"], dict) for b in answer["content"] if b["type"] == "tool_use")


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("/v1/chat/completions", {"stop": ["a"] * 65}, "65 stop texts"),
        ("/v1/chat/completions", {"stop": [""]}, "stop"),
        ("/v1/chat/completions", {"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ("/v1/chat/completions", {"messages": [{"role": "boss", "content": "a"}]}, "role"),
        ("/v1/messages", {"stop_sequences": ["a"] * 65}, "65 stop texts"),
        ("/v1/messages", {"messages": [{"role": "tool", "content": "a"}]}, "role"),
        ("/v1/responses", {"input": [{"content": "a"}]}, "role"),
        ("/v1/responses", {"input": []}, "at least one"),
        ("/api/chat", {"keep_alive": "soon"}, "keep_alive"),
        ("/detokenize", {"tokens": [-1]}, "tokens has -1"),
        ("/detokenize", {"tokens": [10**30]}, "not a token"),
    ],
)  # fmt: skip
def test_what_else_is_named(server: Any, path: str, fields: Any, words: str) -> None:
    assert words in refused(server, path, {**BODIES[path], **fields})


@pytest.mark.parametrize(
    "target", ["/v1/models/%ff%fe", "/v1/models/a%00b", "/props?model=%ff", "/%2e%2e/x"]
)
def test_odd_addresses(server: Any, target: str) -> None:
    status, document = server.ask("GET", target)
    assert status == 404
    assert reported("/v1", document)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "FROBNICATE"])
def test_other_methods(server: Any, method: str) -> None:
    for path in BODIES:
        status, headers, text = server.ask_raw(method, path, BODIES[path])
        assert (status, headers["allow"]) == (405, "POST")
        assert reported(path, json.loads(text))
