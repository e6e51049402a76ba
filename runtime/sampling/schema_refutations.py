"""Schemas of values that do not meet a schema, in keywords that a grammar can enforce."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Schema = Any
"""A schema: a mapping, or true or false."""

TYPES = frozenset({"null", "boolean", "object", "array", "integer", "number", "string"})

_NUMBERS = frozenset({"integer", "number"})
_MAX_DEPTH = 8
_MAX_VALUES = 16
_MAX_WAYS = 32


def refutations(schema: Schema, depth: int = 0) -> list[Schema]:
    """Returns schemas none of whose values meets ``schema``; empty if none is known.

    A value that meets it not may be missing from all of them.
    """
    if schema is False:
        return [True]
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return []
    refuting: list[Schema] = []
    if "const" in schema:
        refuting += _others_than([schema["const"]])
    elif isinstance(values := schema.get("enum"), list):
        refuting += _others_than(values)
    if "type" in schema:
        refuting += _of_other_types(schema["type"])
    if isinstance(names := schema.get("required"), list):
        refuting += [_object({name: False}) for name in names if isinstance(name, str)]
    if isinstance(parts := schema.get("properties"), Mapping):
        for name, part in parts.items():
            ways = refutations(part, depth + 1)
            refuting += [{**_object({name: way}), "required": [name]} for way in ways]
    if isinstance(items := schema.get("items"), Mapping) and "prefixItems" not in schema:
        ways = refutations(items, depth + 1)
        refuting += [{"type": "array", "minItems": 1, "items": way} for way in ways]
    if isinstance(parts := schema.get("allOf"), list):
        for part in parts:
            refuting += refutations(part, depth + 1)
    return refuting if len(refuting) <= _MAX_WAYS else []


def _object(properties: dict[str, Schema]) -> dict[str, Schema]:
    return {"type": "object", "properties": properties}


def _of_other_types(types: Any) -> list[Schema]:
    """Returns what allows all other types; numbers beside integers have no name."""
    named = types if isinstance(types, list) else [types]
    refused = frozenset(type_name for type_name in named if isinstance(type_name, str))
    rest = TYPES - refused - (_NUMBERS if refused & _NUMBERS else frozenset())
    return [{"type": sorted(rest)}] if refused and rest else []


def _others_than(values: Sequence[Any]) -> list[Schema]:
    """Returns what allows all values but these, which are few; of arrays and objects none."""
    if len(values) > _MAX_VALUES:
        return []
    texts = [value for value in values if isinstance(value, str)]
    numbers = [value for value in values if isinstance(value, int | float) and not _is_truth(value)]
    truths = [value for value in values if _is_truth(value)]
    refused = {
        *(("string",) if texts else ()),
        *(_NUMBERS if numbers else ()),
        *(("boolean",) if truths else ()),
        *(("null",) if any(value is None for value in values) else ()),
        *(("array", "object") if any(isinstance(value, list | dict) for value in values) else ()),
    }
    refuting: list[Schema] = [{"type": sorted(TYPES - refused)}] if TYPES - refused else []
    if texts:
        patterns = [{"pattern": _other_text(text)} for text in texts]
        refuting.append({"type": "string", "allOf": patterns})
    if numbers:
        sides = ("exclusiveMaximum", "exclusiveMinimum")
        apart = [{"anyOf": [{side: number} for side in sides]} for number in numbers]
        refuting.append({"type": "number", "allOf": apart})
    if truths and (rest := [truth for truth in (True, False) if truth not in truths]):
        refuting.append({"enum": rest})
    return refuting


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _other_text(text: str) -> str:
    """Returns an expression of every text but this one."""
    n = len(text)
    ways = [rf"[\s\S]{{{n + 1},}}"]
    if n:
        ways.append(rf"[\s\S]{{0,{n - 1}}}")
    for i, letter in enumerate(text):
        unlike = "[^" + re.escape(letter) + "]"
        ways.append(re.escape(text[:i]) + unlike + rf"[\s\S]{{{n - i - 1}}}")
    return "^(" + "|".join(ways) + ")$"
