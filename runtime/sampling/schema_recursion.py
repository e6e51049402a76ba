"""Schemas that refer to themselves without end: no finite value fits them.

A schema ends if some finite value fits it. Those that end are the least fixed point of: a plain
schema ends if all that it requires ends, and a choice ends if one of its options does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from edgedec.runtime.sampling.schema_ways import (
    Plain,
    UnsupportedKeywordError,
    property_schemas,
    referred,
    types_of,
    ways,
)

_MAX_SCHEMAS = 1000
"""A schema with more parts than these is taken to end."""
_KEPT = frozenset({
    "$ref", "allOf", "anyOf", "type", "enum", "const", "properties", "additionalProperties",
    "required", "minProperties", "items", "prefixItems", "minItems", "$defs", "definitions",
})  # fmt: skip
_DEFINITIONS = frozenset({"$defs", "definitions"})
_MALFORMED = (TypeError, ValueError, AttributeError, RecursionError)
"""What parts raise that are no schemas, in places that the library does not read."""
_REFERENCES = ("$ref", "anyOf", "allOf")
_MAPS = ("properties", "$defs", "definitions")
_PARTS = ("additionalProperties", "items", "prefixItems", "anyOf", "allOf")


_Way = tuple["_Need", ...]
"""All needs of a way to fit a schema; a schema without ways fits nothing."""


@dataclass(frozen=True)
class _Need:
    """At least ``n`` of these schemas have to end. keyword: what requires it."""

    keyword: str
    schemas: tuple[Any, ...]
    n: int = 1

    def is_met(self, ending: set[str]) -> bool:
        """Whether enough of them are among the schemas that end."""
        return sum(_key(schema) in ending for schema in self.schemas) >= self.n


def endless(schema: Any) -> str:
    """Returns the keyword that makes every value of ``schema`` endless, and why; empty if none.

    What cannot be judged is taken to end.
    """
    try:
        document = _loosened(schema)
        ways_of = _all_ways(document)
    except _MALFORMED:
        return ""
    ending = _ending(ways_of)
    key, keyword, seen = _key(document), "$ref", set[str]()
    if key in ending:
        return ""
    while key not in seen and ways_of[key]:
        seen.add(key)
        need = next(need for need in ways_of[key][0] if not need.is_met(ending))
        keyword = keyword if need.keyword in _REFERENCES else need.keyword
        key = next(key for key in map(_key, need.schemas) if key not in ending)
    return f"{keyword}: it leads back to the same schema without end, so no finite value fits"


def without_endless(schema: Any) -> Any:
    """Returns ``schema`` with false in place of the parts that no finite value fits.

    So no optional part leads an output into endless recursion.
    """
    try:
        ways_of = _all_ways(_loosened(schema))
    except _MALFORMED:
        return schema
    return _pruned(schema, ways_of.keys() - _ending(ways_of))


def _pruned(schema: Any, endless_keys: Set[str], is_whole: bool = True) -> Any:
    if isinstance(schema, list):
        return [_pruned(part, endless_keys, is_whole=False) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    if not is_whole and _key(_loosened(schema)) in endless_keys:
        return False
    pruned = dict(schema)
    for key in (*_PARTS, "oneOf"):
        if key in schema:
            pruned[key] = _pruned(schema[key], endless_keys, is_whole=False)
    for key in _MAPS:
        if isinstance(parts := schema.get(key), Mapping):
            pruned[key] = {k: _pruned(v, endless_keys, is_whole=False) for k, v in parts.items()}
    return pruned


def _parts(schema: Any) -> Iterator[Any]:
    """Yields a loosened schema and all in it, the outer ones last."""
    if isinstance(schema, list):
        for part in schema:
            yield from _parts(part)
    elif isinstance(schema, Mapping):
        for key in _PARTS:
            yield from _parts(schema.get(key))
        for key in _MAPS:
            yield from _parts([*schema.get(key, {}).values()])
        yield schema


def _ending(ways_of: Mapping[str, Sequence[_Way]]) -> set[str]:
    """Returns the schemas that end, as the least fixed point."""
    ending, n_before = set[str](), -1
    while len(ending) > n_before:
        n_before = len(ending)
        for key, of_schema in ways_of.items():
            if any(all(need.is_met(ending) for need in way) for way in of_schema):
                ending.add(key)
    return ending


def _all_ways(document: Any) -> dict[str, list[_Way]]:
    """Returns the ways of a schema and of all that it may need."""
    ways_of: dict[str, list[_Way]] = {}
    waiting = [*_parts(document), document]
    while waiting:
        schema = waiting.pop()
        if (key := _key(schema)) in ways_of:
            continue
        is_judged = len(ways_of) < _MAX_SCHEMAS
        ways_of[key] = _ways(document, schema) if is_judged else [()]
        waiting += [part for way in ways_of[key] for need in way for part in need.schemas]
    return ways_of


def _ways(document: Any, schema: Any) -> list[_Way]:
    """Returns the ways to fit ``schema``; one without needs if it cannot be judged."""
    keywords = set(schema) - _DEFINITIONS if isinstance(schema, Mapping) else set[str]()
    try:
        if keywords == {"$ref"}:
            return [(_Need("$ref", (referred(document, schema["$ref"]),)),)]
        if keywords == {"anyOf"}:
            return [(_Need("anyOf", (option,)),) for option in schema["anyOf"]]
        if keywords == {"allOf"} and len(schema["allOf"]) == 1:
            return [(_Need("allOf", (schema["allOf"][0],)),)]
        plain = ways(schema, lambda ref: referred(document, ref))
        return [way for part in plain for way in _ways_of_plain(part)]
    except (UnsupportedKeywordError, RecursionError):
        return [()]


def _ways_of_plain(plain: Plain) -> Iterator[_Way]:
    for kind in types_of(plain):
        if "enum" in plain or kind not in ("object", "array"):
            yield ()
        elif kind == "array":
            yield tuple(_items(plain))
        else:
            yield from _ways_of_object(plain)


def _items(plain: Plain) -> Iterator[_Need]:
    """Yields the need of each different item that an array has to have."""
    least, first = int(plain.get("minItems", 0)), plain.get("prefixItems", ())
    for item in first[:least]:
        yield _Need(f"minItems {least}", (item,))
    if least > len(first):
        yield _Need(f"minItems {least}", (plain.get("items", True),))


def _ways_of_object(plain: Plain) -> Iterator[_Way]:
    schemas = property_schemas(plain)
    required = tuple(
        _Need(f"required {json.dumps(name)}", (schemas[name],))
        for name in plain.get("required", ())
    )
    least = int(plain.get("minProperties", 0))
    if least <= len(required):
        yield required
        return
    keyword = f"minProperties {least}"
    yield (*required, _Need(keyword, (plain.get("additionalProperties", True),)))
    if len(schemas) >= least:
        yield (*required, _Need(keyword, tuple(schemas.values()), least))


def _loosened(schema: Any) -> Any:
    """Returns a schema that allows no less, with only the keywords that can be judged."""
    if isinstance(schema, list):
        return [_loosened(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {key: value for key, value in schema.items() if key in _KEPT}
    if "patternProperties" in schema:
        kept.pop("additionalProperties", None)
    for key in _MAPS:
        if isinstance(kept.get(key), Mapping):
            kept[key] = {name: _loosened(part) for name, part in kept[key].items()}
    for key in _PARTS:
        if key in kept:
            kept[key] = _loosened(kept[key])
    if "oneOf" in schema:
        kept["allOf"] = [*kept.get("allOf", ()), {"anyOf": _loosened(schema["oneOf"])}]
    return kept


def _key(schema: Any) -> str:
    return json.dumps(schema, sort_keys=True, default=str)
