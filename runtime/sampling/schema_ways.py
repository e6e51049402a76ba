"""Schemas as choices of plain ones, which hold no references, choices or conjunctions at their top.

The schemas inside them may still hold those.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import product
from typing import Any

Plain = dict[str, Any]
"""A schema without ``$ref``, ``allOf``, ``anyOf`` and ``const``."""

_MAX_WAYS = 200
_MAX_DEPTH = 32
ANNOTATIONS = frozenset({
    "$anchor", "$comment", "$defs", "$id", "$schema", "contentEncoding", "contentMediaType",
    "default", "definitions", "deprecated", "description", "examples", "id", "readOnly", "title",
    "writeOnly", "x-guidance",
})  # fmt: skip
"""Keywords that allow and forbid nothing."""
_TYPES = ("null", "boolean", "object", "array", "number", "string")
_OBJECT = ("properties", "patternProperties", "additionalProperties", "required",
           "minProperties", "maxProperties")  # fmt: skip
_ARRAY = ("items", "prefixItems", "minItems", "maxItems")
_STRING = ("minLength", "maxLength", "pattern", "format")
_NUMBER = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "object": _OBJECT, "array": _ARRAY, "string": _STRING, "number": _NUMBER, "integer": _NUMBER,
    "null": (), "boolean": (),
}  # fmt: skip
"""By type, the keywords that say something about its values."""
_KNOWN = frozenset({"type", "enum", *_OBJECT, *_ARRAY, *_STRING, *_NUMBER})


_NUMBERS = (int, float, Decimal, Fraction)


class UnsupportedKeywordError(Exception):
    """A keyword cannot be enforced together with numbers that need exact arithmetic."""


def refuse(keyword: str) -> UnsupportedKeywordError:
    """Returns the error that names ``keyword``."""
    return UnsupportedKeywordError(f"{keyword} beside numbers of more digits than a float holds")


def referred(root: Any, ref: str) -> Any:
    """Returns what a reference names in the document ``root``.

    Raises:
        UnsupportedKeywordError: It leads out of the document, or nowhere.
    """
    if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
        raise refuse("$ref")
    place: Any = root
    for part in ref[2:].split("/") if ref != "#" else ():
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        elif isinstance(place, Mapping) and name in place:
            place = place[name]
        else:
            raise UnsupportedKeywordError(f"$ref: {ref} leads nowhere")
    return place


def ways(schema: Any, referred: Callable[[str], Any], depth: int = 0) -> list[Plain]:
    """Returns plain schemas; every value of ``schema``, and no other, is of one of them.

    referred: returns what a reference names.

    Raises:
        UnsupportedKeywordError: A keyword cannot be put like that.
    """
    if isinstance(schema, bool):
        return [{}] if schema else []
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        raise refuse("$ref" if depth > _MAX_DEPTH else "schema")
    choices = [[_plain_part(schema)]]
    if "$ref" in schema:
        choices.append(ways(referred(schema["$ref"]), referred, depth + 1))
    for part in schema.get("allOf", ()):
        choices.append(ways(part, referred, depth + 1))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            options = schema[key]
            if key == "oneOf" and len(options) > 1:
                raise refuse(key)
            choices.append([way for option in options for way in ways(option, referred, depth + 1)])
    if math.prod(map(len, choices)) > _MAX_WAYS:
        raise refuse("anyOf")
    merged = [_all_merged(chosen) for chosen in product(*choices)]
    return [way for way in merged if way.get("enum") != []]


def _plain_part(schema: Mapping[str, Any]) -> Plain:
    """Returns what a schema itself says, in plain keywords."""
    in_place = ("$ref", "allOf", "anyOf", "oneOf", "const")
    made = {k: v for k, v in schema.items() if k not in ANNOTATIONS and k not in in_place}
    if "const" in schema:
        values = made.get("enum", [schema["const"]])
        made["enum"] = [value for value in values if is_same(value, schema["const"])][:1]
    if isinstance(made.get("items"), list):  # as in early drafts
        made["prefixItems"] = made["items"]
        made["items"] = made.pop("additionalItems", True)
    if made.get("exclusiveMinimum") is False or made.get("exclusiveMaximum") is False:
        raise refuse("exclusiveMinimum")
    if unknown := sorted(set(made) - _KNOWN):
        raise refuse(unknown[0])
    return made


def _all_merged(chosen: tuple[Plain, ...]) -> Plain:
    made: Plain = {}
    for part in chosen:
        made = _merged(made, part)
    return made


def _merged(a: Plain, b: Plain) -> Plain:
    """Returns a plain schema of the values of both."""
    made = {**a, **b}
    for key in a.keys() & b.keys():
        made[key] = _both(key, a[key], b[key])
    if set(a).intersection(_OBJECT) and set(b).intersection(_OBJECT):
        made.update(_merged_objects(a, b))
    if set(a).intersection(_ARRAY) and set(b).intersection(_ARRAY):
        made.update(_merged_arrays(a, b))
    return made


def _both(key: str, left: Any, right: Any) -> Any:
    if key == "type":
        return sorted(_common_types(left, right))
    if key == "enum":
        return [v for v in left if any(is_same(v, w) for w in right)]
    if key == "required":
        return list(dict.fromkeys([*left, *right]))
    if key == "multipleOf":
        a, b = exact(left), exact(right)
        return _written(Fraction(math.lcm(a.numerator * b.denominator, b.numerator * a.denominator),
                                 a.denominator * b.denominator))  # fmt: skip
    if key in ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"):
        return max(left, right, key=exact)
    if key in ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"):
        return min(left, right, key=exact)
    if key in ("pattern", "format") and left != right:
        raise refuse(key)
    return left  # objects and arrays are merged as a whole


def _common_types(left: Any, right: Any) -> set[str]:
    a, b = ({t} if isinstance(t, str) else set(t) for t in (left, right))
    both = a & b
    if "number" in a | b and "integer" in a | b:
        both |= {"integer"} if "number" not in both else set()
    return both


def _merged_objects(a: Plain, b: Plain) -> Plain:
    names = dict.fromkeys([*a.get("properties", ()), *b.get("properties", ())])
    merged: Plain = {}
    if "patternProperties" in a or "patternProperties" in b:
        raise refuse("patternProperties")
    if names:
        merged["properties"] = {n: _conjunction(_property(a, n), _property(b, n)) for n in names}
    if "additionalProperties" in a or "additionalProperties" in b:
        rest = [side.get("additionalProperties", True) for side in (a, b)]
        merged["additionalProperties"] = _conjunction(*rest)
    return merged


def _property(schema: Plain, name: str) -> Any:
    known = schema.get("properties", {})
    return known[name] if name in known else schema.get("additionalProperties", True)


def _merged_arrays(a: Plain, b: Plain) -> Plain:
    n = max(len(side.get("prefixItems", ())) for side in (a, b))
    merged: Plain = {"items": _conjunction(a.get("items", True), b.get("items", True))}
    if n:
        merged["prefixItems"] = [_conjunction(_item(a, i), _item(b, i)) for i in range(n)]
    return merged


def _item(schema: Plain, i: int) -> Any:
    first = schema.get("prefixItems", ())
    return first[i] if i < len(first) else schema.get("items", True)


def _conjunction(a: Any, b: Any) -> Any:
    if a is True or a == b:
        return b
    return a if b is True else {"allOf": [a, b]}


def types_of(plain: Plain) -> list[str]:
    """Returns the types that a plain schema's values have."""
    types = plain.get("type", _TYPES)
    return [types] if isinstance(types, str) else list(types)


def property_schemas(plain: Plain) -> dict[str, Any]:
    """Returns the schemas of the properties of an object that have names.

    Raises:
        UnsupportedKeywordError: An expression of names cannot be read, or no name is known.
    """
    known, rest = plain.get("properties", {}), plain.get("additionalProperties", True)
    patterns = plain.get("patternProperties", {})
    if patterns and not known:
        raise refuse("patternProperties")
    schemas = {name: known.get(name, rest) for name in [*known, *plain.get("required", ())]}
    for pattern, schema in patterns.items():
        try:
            matching = [name for name in schemas if re.search(pattern, name)]
        except re.error:
            raise refuse("patternProperties") from None
        for name in matching:
            schemas[name] = _conjunction(known.get(name, True), schema)
    return schemas


def exact(number: Any) -> Fraction:
    """Returns a number of a schema; a float is what its shortest digits say, as JSON writes it."""
    return Fraction(repr(number)) if isinstance(number, float) else Fraction(number)


def _written(number: Fraction) -> int | float | Fraction:
    if number.denominator == 1:
        return int(number)
    return float(number) if exact(float(number)) == number else number


def is_same(a: Any, b: Any) -> bool:
    """Says whether JSON takes two values for one: true is not 1, and 1.0 is."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(is_same(a[key], b[key]) for key in a)
    if isinstance(a, _NUMBERS) and isinstance(b, _NUMBERS):
        return exact(a) == exact(b)
    return bool(a == b) and type(a) is type(b)
