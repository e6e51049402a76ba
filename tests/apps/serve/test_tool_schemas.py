"""Schemas of tools: followed as far as they can be, together with a schema of the answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

pytest.importorskip("llguidance", reason="needs the extra grammar")

from edgedec.apps.serve import tools
from edgedec.apps.serve.core import AUTO, REQUIRED, ChatPrompt, Tool
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.sampling.grammar import Grammars

WEATHER = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
TWO = [
    Tool("f", "", {"properties": {"a": {"type": "integer"}}}),
    Tool("g", "", {"properties": {"s": {"type": "array", "uniqueItems": True}}}),
]
SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
F = '<tool_call>\n{"name": "f", "arguments": {"a": 5}}\n</tool_call>'
G = '<tool_call>\n{"name": "g", "arguments": {"s": [1, 1]}}\n</tool_call>'
WRONG = F.replace("5", '"x"')
COMPACT = {**SCHEMA, "x-guidance": {"whitespace_flexible": False}}
ANY_SPACE = {**SCHEMA, "x-guidance": {"whitespace_flexible": True}}

TABLE: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    (AUTO, {}, ["Hi.", F, G, f"{F}\n{G}", f"Let me see.\n{F}", '{"b": 1}'],
     [WRONG, "a <tool_call> b", f"{F} and"]),
    (AUTO, {"json_schema": SCHEMA}, ['{"b": 1}', F, G, f"{F}\n{G}"],
     ["Hi.", f"Hi.\n{F}", WRONG, '{"b": "x"}', f'{{"b": 1}}{F}']),
    (AUTO, {"json_schema": COMPACT}, ['{"b":1}', F, f"{F}\n{G}"], ['{"b": 1}', "Hi.", WRONG]),
    (AUTO, {"json_schema": ANY_SPACE}, ['{"b":     1}', F, f"{F}\n{G}"], ["Hi.", WRONG]),
    (AUTO, {"regex": "[0-9]{3}/"}, ["123/", F, f"{F}\n{G}"], ["12/", WRONG]),
    (AUTO, {"grammar": 'start: "a" "b"'}, ["ab", F, f"{F}\n{G}"], ["a", WRONG]),
    (REQUIRED, {"json_schema": SCHEMA}, [F, G, f"{F}\n{G}"], ['{"b": 1}', "Hi.", WRONG]),
    ("f", {"json_schema": SCHEMA}, [F], [G, f"{F}\n{F}", '{"b": 1}', WRONG]),
]  # fmt: skip


Check = Callable[[str, str], bool]


@pytest.fixture
def is_allowed(engine: Engine, grammars: Grammars) -> Check:
    """Returns what tells whether a text is a whole output under a grammar."""
    return lambda grammar, text: is_output(grammars, grammar, engine.tokenizer.encode(text))


def is_output(grammars: Grammars, grammar: str, tokens: list[int]) -> bool:
    stop = 2
    mask = grammars.mask(GenerationConfig(grammar=grammar), frozenset({stop}))
    assert mask is not None
    for token in tokens:
        row = mask.row_after(())
        if mask.is_finished or (row is not None and not row[token]):
            return False
        mask.accept(token)
    row = mask.row_after(())
    return row is None or bool(row[stop])


@pytest.mark.e2e
@pytest.mark.parametrize(("choice", "settings", "right", "wrong"), TABLE)
def test_an_answer_is_a_call_or_what_the_request_asks_for(
    is_allowed: Check, choice: str, settings: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    grammar = tools.grammar(ChatPrompt([], TWO, choice), settings)
    assert [text for text in right if not is_allowed(grammar, text)] == []
    assert [text for text in wrong if is_allowed(grammar, text)] == []


def test_one_call_where_one_is_wanted() -> None:
    grammar = tools.grammar(ChatPrompt([], TWO, AUTO, is_parallel=False), {"json_schema": SCHEMA})
    assert ")*" not in json.loads(grammar)["grammars"][0]["lark_grammar"]


@pytest.mark.parametrize(
    "settings",
    [{"json_schema": {"type": "x"}}, {"regex": "("}, {"grammar": "start: nothing"}],
)
def test_the_request_s_own_constraint_is_refused_beside_tools_as_without(
    settings: dict[str, Any],
) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(settings))} is refused: "):
        tools.grammar(ChatPrompt([], TWO), settings)


LOOSENED: list[tuple[dict[str, Any], list[str]]] = [
    ({"properties": {"email": {"type": "string", "format": "email", "pattern":
      r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"}}},
     ["pattern of email"]),
    ({"properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}},
     ["uniqueItems of a"]),
    ({"properties": {"a": {"type": "string", "format": "regex"}}}, ["format of a"]),
    ({"properties": {"a": {"type": "string", "format": "iri"}}}, ["format of a"]),
    ({"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 1}]}}},
     ["oneOf of a"]),
    ({"properties": {"a": {"not": {"multipleOf": 2}}}}, ["not of a"]),
    ({"propertyNames": {"format": "date"}}, ["propertyNames"]),
    ({"if": {"minProperties": 1}, "then": {"required": ["b"]}}, ["if", "then"]),
    ({"properties": None}, []),
    ({"properties": {"a": {"type": "string", "required": True}}}, []),
    ({"properties": {"a": {"type": "potato"}}}, ["type of a"]),
    ({"properties": {"a": {"$ref": "https://example.com/a"}, "b": {"$ref": "#/$defs/b"}}},
     ["$ref of a", "$ref of b"]),
    ({"minProperties": 2, "properties": {"a": {}, "b": {}, "c": {}}}, ["minProperties"]),
    ({"properties": {"a": {"patternProperties": {"^(?=a)": {}}, "additionalProperties": False}}},
     ["patternProperties of a"]),
    ({"properties": {"a": {"items": {"properties": {"b": {"pattern": "(?<=a)b"}}}}}},
     ["pattern of a[].b"]),
    ({"properties": {"a": {"type": "string", "minLength": "3"}}}, ["minLength of a"]),
    ({"properties": {"a": 3}}, ["schema of a"]),
    ({"type": ["object", "null"], "properties": {"a": {"type": "integer"}}}, []),
    ({"properties": {"a": {"type": "array", "contains": {"type": "integer"},
                           "unevaluatedItems": False}}},
     ["unevaluatedItems of a"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "dropped"), LOOSENED)
def test_what_cannot_be_enforced_is_named(schema: dict[str, Any], dropped: list[str]) -> None:
    prompt = ChatPrompt([], [Tool("f", "", schema), Tool("whole", "", SCHEMA)])
    assert tools.loosened(prompt) == ({"f": tuple(dropped)} if dropped else {})
    assert tools.grammar(prompt, {})


@pytest.mark.e2e
def test_the_rest_of_a_loosened_schema_is_followed(is_allowed: Check) -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": "(?=a)", "maxLength": 2},
                             "b": {"type": "integer"}}, "required": ["a", "b"]}  # fmt: skip
    grammar = tools.grammar(ChatPrompt([], [Tool("f", "", schema)], "f"), {})
    call = '<tool_call>\n{"name": "f", "arguments": ARGS}\n</tool_call>'
    for arguments, wanted in {
        '{"a": "xy", "b": 1}': True, '{"a": "xyz", "b": 1}': False, '{"a": "xy"}': False,
        '{"a": "xy", "b": "1"}': False,
    }.items():  # fmt: skip
        assert is_allowed(grammar, call.replace("ARGS", arguments)) is wanted, arguments


FUNCTION = {
    "name": "get_weather",
    "description": "Says how the weather will be.",
    "parameters": {
        "type": "object",
        "properties": {"tags": {"type": "array", "items": {}, "uniqueItems": True}},
    },
}
MESSAGES = [{"role": "user", "content": "How will the weather be?"}]
FORMAT = {"type": "json_schema", "name": "x", "schema": WEATHER}
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": MESSAGES, "max_tokens": 100, "temperature": 0,
        "tools": [{"type": "function", "function": FUNCTION}],
        "response_format": {"type": "json_schema", "json_schema": FORMAT},
    },
    "/v1/responses": {
        "input": "How will the weather be?", "max_output_tokens": 100, "temperature": 0,
        "tools": [{"type": "function", **FUNCTION}], "text": {"format": FORMAT},
    },
    "/v1/messages": {
        "messages": MESSAGES, "max_tokens": 100, "temperature": 0,
        "tools": [{"name": "get_weather", "input_schema": FUNCTION["parameters"]}],
        "output_config": {"format": {"type": "json_schema", "schema": WEATHER}},
    },
    "/api/chat": {
        "model": "smollm2", "messages": MESSAGES, "options": {"num_predict": 100, "temperature": 0},
        "tools": [{"type": "function", "function": FUNCTION}], "format": WEATHER, "stream": False,
    },
}  # fmt: skip


def text_and_calls(path: str, answer: Any) -> tuple[str, list[Any]]:
    if path == "/v1/chat/completions":
        message = answer["choices"][0]["message"]
        return message["content"] or "", message.get("tool_calls", [])
    if path == "/api/chat":
        return answer["message"]["content"], answer["message"].get("tool_calls", [])
    items = answer["output" if path == "/v1/responses" else "content"]
    texts = [one.get("text") or one.get("content", [{}])[0].get("text", "") for one in items]
    return "".join(texts), [one for one in items if one["type"] in ("function_call", "tool_use")]


@pytest.mark.e2e
@pytest.mark.parametrize("path", REQUESTS)
def test_tools_and_a_schema_together_everywhere(server: Any, path: str) -> None:
    status, headers, body = server.ask_raw("POST", path, REQUESTS[path])
    assert status == 200, body
    assert headers["x-edgedec-loosened"] == "get_weather: uniqueItems of tags"
    text, calls = text_and_calls(path, json.loads(body))
    assert bool(text) is not bool(calls)
    if text:
        jsonschema.validate(json.loads(text), WEATHER)


@pytest.mark.e2e
def test_a_stream_has_the_note_and_the_log_has_it_once(
    server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tool = {"name": "look_up", "parameters": {"properties": {"a": {"not": {"multipleOf": 2}}}}}
    asked = {"messages": MESSAGES, "max_tokens": 4, "stream": True}
    asked["tools"] = [{"type": "function", "function": tool}]
    for _ in range(2):
        _, headers, _ = server.ask_raw("POST", "/v1/chat/completions", asked)
        assert headers["x-edgedec-loosened"] == "look_up: not of a"
    assert [record.getMessage() for record in caplog.records].count(
        "not enforced of the schema of the tool look_up: not of a"
    ) == 1


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["wéi\r\nrd: x", "a" * 6000, "日本"])
def test_odd_names_make_no_odd_headers(server: Any, name: str) -> None:
    tool = {"name": name, "parameters": {"properties": {"é": {"pattern": "(?=a)"}}}}
    asked = {"messages": MESSAGES, "max_tokens": 4}
    asked["tools"] = [{"type": "function", "function": tool}]
    status, headers, _ = server.ask_raw("POST", "/v1/chat/completions", asked)
    assert status in (200, 400)
    if status == 200:
        assert headers["x-edgedec-loosened"].isascii()
        assert len(headers["x-edgedec-loosened"]) <= 4096


@pytest.mark.e2e
def test_no_grammar_is_shown_where_schemas_are_too_large_together(server: Any) -> None:
    big = {"properties": {f"p{i}": {"enum": [f"v{i}-{j}" for j in range(40)]} for i in range(400)}}
    functions = [{"name": f"f{i}", "parameters": big} for i in range(3)]
    asked = {"messages": MESSAGES, "max_tokens": 4}
    asked["tools"] = [{"type": "function", "function": one} for one in functions]
    status, answer = server.ask("POST", "/v1/chat/completions", asked)
    if status != 200:
        words = answer["error"]["message"]
        assert "%json" not in words
        assert "start:" not in words
        assert "<tool_call>" not in words
