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
    found: list[Schema] = []
    if "const" in schema:
        found += _others_than([schema["const"]])
    elif isinstance(values := schema.get("enum"), list):
        found += _others_than(values)
    if "type" in schema:
        found += _of_other_types(schema["type"])
    if isinstance(names := schema.get("required"), list):
        found += [_object({name: False}) for name in names if isinstance(name, str)]
    if isinstance(parts := schema.get("properties"), Mapping):
        for name, part in parts.items():
            ways = refutations(part, depth + 1)
            found += [{**_object({name: way}), "required": [name]} for way in ways]
    if isinstance(items := schema.get("items"), Mapping) and "prefixItems" not in schema:
        ways = refutations(items, depth + 1)
        found += [{"type": "array", "minItems": 1, "items": way} for way in ways]
    if isinstance(parts := schema.get("allOf"), list):
        for part in parts:
            found += refutations(part, depth + 1)
    return found if len(found) <= _MAX_WAYS else []


def _object(properties: dict[str, Schema]) -> dict[str, Schema]:
    return {"type": "object", "properties": properties}


def _of_other_types(types: Any) -> list[Schema]:
    """Returns what allows all other types; numbers beside integers have no name."""
    named = types if isinstance(types, list) else [types]
    refused = frozenset(one for one in named if isinstance(one, str))
    rest = TYPES - refused - (_NUMBERS if refused & _NUMBERS else frozenset())
    return [{"type": sorted(rest)}] if refused and rest else []


def _others_than(values: Sequence[Any]) -> list[Schema]:
    """Returns what allows all values but these, which are few; of arrays and objects none."""
    if len(values) > _MAX_VALUES:
        return []
    texts = [one for one in values if isinstance(one, str)]
    numbers = [one for one in values if isinstance(one, int | float) and not _is_truth(one)]
    truths = [one for one in values if _is_truth(one)]
    refused = {
        *(("string",) if texts else ()),
        *(_NUMBERS if numbers else ()),
        *(("boolean",) if truths else ()),
        *(("null",) if any(one is None for one in values) else ()),
        *(("array", "object") if any(isinstance(one, list | dict) for one in values) else ()),
    }
    found: list[Schema] = [{"type": sorted(TYPES - refused)}] if TYPES - refused else []
    if texts:
        patterns = [{"pattern": _other_text(one)} for one in texts]
        found.append({"type": "string", "allOf": patterns})
    if numbers:
        sides = ("exclusiveMaximum", "exclusiveMinimum")
        apart = [{"anyOf": [{side: one} for side in sides]} for one in numbers]
        found.append({"type": "number", "allOf": apart})
    if truths and (rest := [one for one in (True, False) if one not in truths]):
        found.append({"enum": rest})
    return found


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
