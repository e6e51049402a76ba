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
from edgedec.runtime.sampling.schema_recursion import endless

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


def is_fitted(schema: Any) -> bool:
    """Whether a small value is valid; a reference that leads to itself has none."""
    validator = jsonschema.Draft202012Validator(schema)
    try:
        return any(validator.is_valid(value) for value in VALUES)
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
    for _ in range(150):
        schema = {**made(rng, 2), "$defs": {name: made(rng, 2) for name in "xyz"}}
        if endless(schema):
            n_endless += 1
            assert not is_fitted(schema), schema
    assert n_endless > 20
