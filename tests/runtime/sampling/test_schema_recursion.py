"""Schemas that only endless recursion fits: judged by the library jsonschema on small values."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import jsonschema
import numpy as np
import pytest

from edgedec.models.errors import RefusedGrammarError
from edgedec.runtime.sampling.schema_grammar import schema_grammar
from edgedec.runtime.sampling.schema_recursion import endless, without_endless

NODE = {"$ref": "#/$defs/node"}
ENDLESS: dict[str, tuple[dict[str, Any], str]] = {
    "required": ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
                 'required "a"'),
    "rest": ({"type": "object", "additionalProperties": {"$ref": "#"}, "required": ["b"]},
             'required "b"'),
    "items": ({"type": "array", "items": {"$ref": "#"}, "minItems": 2}, "minItems 2"),
    "first item": ({"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}, "minItems 1"),
    "count": ({"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 1},
              "minProperties 1"),
    "reference": ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, "$ref"),
    "options": ({"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}]}, "$ref"),
    "in turn": ({"anyOf": [{"type": "array", "items": {"$ref": "#"}, "minItems": 1}, NODE],
                 "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#"}},
                                    "required": ["next"]}}}, "minItems 1"),
    "apart": ({"allOf": [{"type": "object", "required": ["a"]},
                         {"properties": {"a": {"$ref": "#"}}}]}, 'required "a"'),
}  # fmt: skip


def values() -> list[Any]:
    """Returns scalars, and arrays and objects of up to two of them, two levels deep."""
    level = scalars = [None, ""]
    for _ in range(2):
        pairs = list(product(level, repeat=2))
        arrays = [[], *([one] for one in level), *(list(pair) for pair in pairs)]
        objects = [{}, *({name: one} for name in "ab" for one in level)]
        level = [*scalars, *arrays, *objects, *({"a": one, "b": other} for one, other in pairs)]
    return level


VALUES = values()


def is_valid(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def is_fitted(schema: Any) -> bool:
    """Whether a small value is valid; a reference that leads to itself has none."""
    try:
        return any(is_valid(schema, value) for value in VALUES)
    except RecursionError:
        return False


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_schemas_are_refused(name: str) -> None:
    schema, keyword = ENDLESS[name]
    assert not is_fitted(schema)
    with pytest.raises(RefusedGrammarError) as caught:
        schema_grammar(json.dumps(schema))
    assert f"json_schema is refused: {keyword}: it leads back to the same" in str(caught.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "array", "prefixItems": [{"type": "null"}], "items": {"$ref": "#"}, "minItems": 1},
        {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        {"additionalProperties": {"$ref": "#"}, "minProperties": 1},
        {"type": "object", "required": ["a"], "properties": {
            "a": {"anyOf": [{"$ref": "#"}, {"type": "string"}]}}},
    ],
    ids=str,
)  # fmt: skip
def test_schemas_that_end_are_kept(schema: dict[str, Any]) -> None:
    assert is_fitted(schema)
    schema_grammar(json.dumps(schema))


MUST_END = {"type": "array", "items": NODE, "minItems": 1}


@pytest.mark.parametrize(
    ("schema", "finite"),
    [
        (
            {"type": "object", "properties": {"a": NODE, "b": {}}, "$defs": {"node": MUST_END}},
            {"type": "object", "properties": {"a": False, "b": {}}, "$defs": {"node": False}},
        ),
        (
            {"anyOf": [{"type": "null"}, NODE], "$defs": {"node": MUST_END}},
            {"anyOf": [{"type": "null"}, False], "$defs": {"node": False}},
        ),
        (
            {"type": "array", "items": NODE, "$defs": {"node": MUST_END}},
            {"type": "array", "items": False, "$defs": {"node": False}},
        ),
    ],
    ids=["property", "option", "items"],
)
def test_optional_parts_that_never_end_are_left_out(schema: Any, finite: Any) -> None:
    assert without_endless(schema) == finite
    assert [v for v in VALUES if is_valid(finite, v)] == [v for v in VALUES if is_valid(schema, v)]
    assert "$ref" not in str(schema_grammar(json.dumps(schema)))


def test_any_value_ends() -> None:
    assert endless(True) == ""
    assert without_endless(True) is True
    schema_grammar("true")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "$defs": {"a": {"allOf": 3, "oneOf": 4}}},
        {"type": "string", "allOf": [{"minItems": "x"}, {"minItems": 2}]},
        {"type": "string", "properties": 3, "$defs": 4},
    ],
    ids=str,
)
def test_malformed_parts_are_taken_to_end(schema: Any) -> None:
    assert endless(schema) == ""
    assert without_endless(schema) == schema


def made(rng: np.random.Generator, depth: int) -> Any:
    """Returns a schema of references, objects, arrays, choices and scalars, at random."""
    kind = rng.integers(3 if depth == 0 else 7)
    if kind <= 1:
        return {"$ref": f"#/$defs/{'xyz'[rng.integers(3)]}"}
    if kind == 2:
        return {"type": ["null", "string"][rng.integers(2)]}
    if kind == 3:
        return {"type": "array", "items": made(rng, depth - 1), "minItems": int(rng.integers(3))}
    if kind == 4:
        return {"anyOf": [made(rng, depth - 1) for _ in range(2)]}
    return {
        "type": "object",
        "properties": {name: made(rng, depth - 1) for name in "ab"},
        "required": [name for name in "ab" if rng.integers(3)],
    }


def test_no_schema_that_a_value_fits_is_endless() -> None:
    rng, n_endless = np.random.default_rng(0), 0
    for _ in range(120):
        schema = {**made(rng, 2), "$defs": {name: made(rng, 2) for name in "xyz"}}
        try:
            valid = [value for value in VALUES[::9] if is_valid(schema, value)]
        except RecursionError:  # of a reference that leads to itself alone
            continue
        if endless(schema):
            n_endless += 1
            assert valid == [], schema
        else:
            finite = without_endless(schema)
            assert [value for value in valid if not is_valid(finite, value)] == [], schema
    assert n_endless > 5
