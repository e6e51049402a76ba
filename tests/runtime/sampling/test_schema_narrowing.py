"""What a narrowed schema allows, the original allows: the library jsonschema judges both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import combinations
from typing import Any

import jsonschema
import numpy as np
import pytest
from referencing import Registry

from edgedec import Engine
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.sampling.schema_narrowing import narrowed

from ..conftest import Row

STOP = 0
SCALARS: list[Any] = [None, True, False, 0, 1, 1.0, 2.5, "", "a", "red", "0fa", "2020-01-01"]
SHAPES = {
    "circle": {"type": "object", "required": ["r"], "properties": {"r": {"type": "number"}}},
    "square": {"type": "object", "required": ["a"], "properties": {"a": {"type": "number"}}},
    "named": {"type": "object", "required": ["kind"], "properties": {"kind": {"const": "n"}}},
    "other": {"type": "object", "required": ["kind"], "properties": {"kind": {"const": "o"}}},
}
SCHEMAS: dict[str, Any] = {
    "overlapping objects": {"oneOf": [SHAPES["circle"], SHAPES["square"]]},
    "by reference": {
        "oneOf": [{"$ref": "#/definitions/circle"}, {"$ref": "#/definitions/square"}],
        "definitions": SHAPES,
    },
    "told apart by a constant": {"oneOf": [SHAPES["named"], SHAPES["other"]]},
    "by types": {"oneOf": [{"type": "string"}, {"type": "null"}, {"type": "number"}]},
    "integer and number": {"oneOf": [{"type": "integer"}, {"type": "number"}, {"type": "null"}]},
    "by values": {"oneOf": [{"enum": [1, "a", None]}, {"enum": [True, "a", 2.5]}]},
    "true is not 1": {"oneOf": [{"const": True}, {"const": 1}]},
    "required in turn": {
        "type": "object",
        "properties": {"a": {"type": "number"}, "r": {"type": "number"}},
        "oneOf": [{"required": ["a"]}, {"required": ["r"]}],
        "additionalProperties": False,
    },
    "one within the other": {
        "type": "object", "oneOf": [{"required": ["a"]}, {"required": ["a", "r"]}]
    },
    "arrays": {
        "oneOf": [
            {"type": "array", "items": {"type": "number"}},
            {"type": "array", "items": {"type": "string"}},
        ]
    },
    "choices within": {
        "oneOf": [{"anyOf": [SHAPES["named"], SHAPES["other"]]}, {"type": "array"}]
    },
    "a closed one": {
        "oneOf": [{**SHAPES["square"], "additionalProperties": False}, {"type": "object",
                  "required": ["a", "r"]}]
    },
    "beside anyOf": {
        "anyOf": [{"type": "object"}, {"type": "string"}],
        "oneOf": [{"type": "string"}, {"type": "null"}],
    },
    "dependencies": {"type": "object", "dependencies": {"a": ["r"], "kind": SHAPES["named"]}},
    "dependent": {"type": "object", "dependentRequired": {"a": ["r"]}, "required": ["a"]},
    "dependent schemas": {"dependentSchemas": {"a": {"required": ["kind"]}}},
    "not required": {"not": {"required": ["a", "r"]}},
    "not a type": {"not": {"type": ["object", "number"]}},
    "not anything": {"properties": {"a": {"not": {}}}, "type": "object"},
    "counted": {
        "type": "object", "properties": {"a": {}}, "additionalProperties": False,
        "required": ["a"], "minProperties": 1, "maxProperties": 1,
    },
    "unknown format": {"type": "string", "format": "no-such-format"},
    "unique, if need be": {"type": "array", "uniqueItems": False},
    "then without if": {"type": "integer", "then": {"minimum": 5}, "else": False},
    "if and nothing": {"type": "object", "if": {"required": ["a"]}},
    "so many of nothing": {"type": "array", "minContains": 2, "maxContains": 1},
    "none need be there": {"type": "array", "contains": {"type": "string"}, "minContains": 0},
    "nothing unevaluated": {
        "type": "object", "properties": {"a": {"type": "number"}}, "unevaluatedProperties": False,
    },
    "all are evaluated": {
        "type": "object", "additionalProperties": True, "unevaluatedProperties": False,
    },
    "items unevaluated": {
        "type": "array", "prefixItems": [{"type": "number"}], "unevaluatedItems": False,
    },
    "names are text": {"type": "object", "propertyNames": {"type": "string"}},
    "any names": {"type": "object", "propertyNames": True},
    "names by pattern": {
        "type": "object", "propertyNames": {"pattern": "^.$"},
        "additionalProperties": {"type": "number"},
    },
    "names by length": {"type": "object", "propertyNames": {"minLength": 2, "maxLength": 4}},
    "names by choice": {
        "type": "object", "propertyNames": {"enum": ["a", "kind"]},
        "properties": {"a": {"type": "number"}, "r": {}},
    },
    "one name": {"type": "object", "propertyNames": {"const": "r"}},
    "a property tells": {
        "oneOf": [{"type": "object", "properties": {"a": {"type": "number"}}},
                  {"type": "object", "properties": {"a": {"type": "string"}}}]
    },
    "closed apart": {
        "oneOf": [{"type": "object", "properties": {"a": {}}, "additionalProperties": False},
                  {"type": "object", "properties": {"r": {}, "kind": {}},
                   "additionalProperties": False}]
    },
    "a literal pattern": {
        "oneOf": [{"type": "object", "required": ["kind"],
                   "properties": {"kind": {"type": "string", "pattern": f"^{kind}$"}}}
                  for kind in "no"]
    },
    "if a constant": {
        "type": "object", "properties": {"kind": {"type": "string"}},
        "if": {"properties": {"kind": {"const": "n"}}}, "then": {"required": ["a"]},
        "else": {"required": ["r"]},
    },
    "if there": {"if": {"required": ["a"]}, "then": {"required": ["r"]}},
    "if of a kind": {
        "if": {"type": "object", "required": ["kind"], "properties": {"kind": {"enum": [1, "n"]}}},
        "then": {"required": ["a"]}, "else": {"not": {"required": ["a", "r"]}},
    },
    "if items": {
        "type": "array", "if": {"items": {"type": "integer"}}, "then": {"maxItems": 1},
        "else": {"minItems": 2},
    },
    "not a constant": {"not": {"const": "red"}},
    "not odd letters": {"type": "string", "not": {"enum": ["a b-c", "^]\\", "é#~&<", "\n."]}},
    "not these": {"not": {"enum": [True, 1, 2.5, "a", "", None]}},
    "not one kind": {
        "type": "object", "not": {"properties": {"kind": {"const": "n"}}, "required": ["kind"]}
    },
    "contains": {"type": "array", "contains": {"type": "string"}},
    "contains among": {"type": "array", "items": {"enum": [1, 2, "a"]}, "contains": {"const": 1}},
    "unique, few": {"type": "array", "items": {"enum": [1, "a", 2]}, "uniqueItems": True},
    "unique truths": {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True},
    "unique, one": {"type": "array", "uniqueItems": True, "maxItems": 1},
    "names of keywords": {
        "type": "object", "properties": {"oneOf": {"type": "number"}, "format": {"const": "x"}}
    },
}  # fmt: skip


def values() -> Iterator[Any]:
    """Yields scalars, arrays of two, and objects of all names with some values."""
    yield from SCALARS
    yield []
    yield from ([one, other] for one in (1, "a") for other in (2, "b", 1))
    yield from ([one] for one in (1, "a", True))
    yield [True, False]
    yield [True, True]
    names = ("a", "r", "kind", "oneOf")
    for n in range(len(names) + 1):
        for chosen in combinations(names, n):
            yield from (dict.fromkeys(chosen, value) for value in (1, "n", "o"))


def is_valid(schema: Any, value: Any) -> bool:
    kind = jsonschema.Draft202012Validator
    if "dependencies" in json.dumps(schema):
        kind = jsonschema.Draft7Validator
    return bool(kind(schema, registry=Registry()).is_valid(value))


@pytest.mark.parametrize("name", SCHEMAS)
def test_nothing_is_allowed_that_was_not(name: str) -> None:
    schema = SCHEMAS[name]
    before = json.dumps(schema)
    found = narrowed(schema)
    assert json.dumps(schema) == before
    allowed = [value for value in values() if is_valid(found, value)]
    assert [value for value in allowed if not is_valid(schema, value)] == []
    assert allowed


WHOLE = [
    "told apart by a constant", "by types", "by values", "required in turn", "arrays",
    "dependencies", "dependent", "not required", "not a type", "counted", "unknown format",
    "names of keywords", "unique, if need be", "then without if", "if and nothing",
    "so many of nothing", "none need be there", "nothing unevaluated", "all are evaluated",
    "items unevaluated", "names are text", "any names", "names by pattern", "names by length",
    "names by choice", "one name", "if there", "if a constant", "not a constant", "not these",
    "not one kind", "a property tells", "closed apart", "a literal pattern", "unique, few",
    "unique truths", "unique, one",
]  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_nothing_valid_is_lost_here(name: str) -> None:
    schema, found = SCHEMAS[name], narrowed(SCHEMAS[name])
    lost = [v for v in values() if is_valid(schema, v) and not is_valid(found, v)]
    assert lost == []


def test_a_property_may_be_called_as_a_keyword() -> None:
    assert narrowed(SCHEMAS["names of keywords"]) == SCHEMAS["names of keywords"]


@pytest.mark.parametrize("name", sorted(set(SCHEMAS) - {"not a type"}))
def test_models_follow_them(name: str, make_engine: Callable[..., Engine]) -> None:
    def rule(prefix: Sequence[int]) -> Row:
        row = np.random.default_rng(len(prefix)).standard_normal(engine.model.vocab_size)
        row[ends] += 6
        return row.astype(np.float32)

    engine = make_engine(rule, context=512)
    ends = [i for text in '"}]' for i in engine.tokenizer.encode(text)] + [STOP]
    n_ended = 0
    for seed in range(2):
        config = GenerationConfig(
            json_schema=SCHEMAS[name], seed=seed, max_new_tokens=120, stop_token_ids=(STOP,)
        )
        result = engine.generate("Hi", config, temperature=1.0)
        if result.finish_reason == "stop":
            n_ended += 1
            assert is_valid(SCHEMAS[name], json.loads(result.text)), result.text
    assert n_ended


@pytest.mark.robustness
@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"$ref": "#/oneOf/0"}, {"$ref": "#"}]},
        {"oneOf": 3}, {"oneOf": []}, {"not": {"type": {}}}, {"not": {"required": 1}},
        {"type": [{}], "oneOf": [{"type": [[]]}, {"required": [{}]}]},
        {"dependencies": {"a": 1, "b": [[]]}}, {"minProperties": 1, "required": [{}]},
        {"oneOf": [{"properties": 3}, {"properties": {"a": 1}, "required": ["a"]}]},
        {"$defs": {"A": {"type": "object", "required": ["x", "y"], "properties": {
            "x": {"$ref": "#/$defs/A"}, "y": {"$ref": "#/$defs/A"}}}},
         "oneOf": [{"$ref": "#/$defs/A"}, {"allOf": [{"$ref": "#/$defs/A"}]}]},
        {"$defs": {"A": {"allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/A"}]}},
         "oneOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]},
        {"oneOf": [{"const": i} for i in range(5000)]},
        {"if": 3, "then": 4}, {"if": {"properties": 1, "required": 2, "enum": 3}, "then": False},
        {"if": {"enum": list(range(5000))}, "else": False},
        pytest.param({"not": {"const": "x" * 5000}}, marks=pytest.mark.slow),
        {"if": {"properties": {f"p{i}": {"enum": ["a", 1]} for i in range(200)}}, "then": False},
        {"allOf": [{"if": {"required": [f"p{i}"]}, "then": {"required": [f"q{i}"]}}
                   for i in range(40)]},
        {"contains": 1, "minItems": "2"}, {"uniqueItems": 1, "type": ["array"], "items": 2},
        {"type": "array", "uniqueItems": True, "items": {"enum": [[], {}, 1, 1.0]}},
        {"oneOf": [{"type": "object", "required": [f"p{i}"]} for i in range(100)]},
    ],
)  # fmt: skip
def test_hostile_schemas_end_soon(schema: Any, make_engine: Callable[..., Engine]) -> None:
    narrowed(schema)
    engine = make_engine(context=64)
    with suppress(ConfigError):
        engine.generate("Hi", GenerationConfig(json_schema=schema, max_new_tokens=4))


@pytest.mark.robustness
def test_a_deep_schema_ends_soon() -> None:
    schema: Any = {"type": "null"}
    for _ in range(400):
        schema = {"oneOf": [{"type": "string"}, {"type": "array", "items": schema}]}
    narrowed(schema)
