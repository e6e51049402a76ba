"""Schemas without the keywords that cannot be enforced, and the names of those.

For schemas that somebody else wrote: a tool's answer that meets most of its schema is better than
no answer. Every value that a schema allows is allowed by the loosened one, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from edgedec.models.errors import RefusedGrammarError
from edgedec.runtime.sampling.exact_schema import read_schema, write_schema
from edgedec.runtime.sampling.schema_grammar import (
    Grammar,
    is_known_pattern,
    refusal,
    schema_grammar,
)
from edgedec.runtime.sampling.schema_narrowing import narrowed
from edgedec.runtime.sampling.schema_refutations import TYPES

_MAX_DEPTH = 64
_UNENFORCED = frozenset({
    "not", "if", "then", "else", "dependentSchemas", "dependentRequired", "dependencies",
    "propertyNames", "uniqueItems", "contains", "minContains", "maxContains",
    "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef",
    "contentSchema",
})  # fmt: skip
"""Keywords that llguidance does not know."""
_SOMETIMES = ("oneOf", "minProperties", "maxProperties", "patternProperties", "multipleOf",
              "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern", "format",
              "minLength", "maxLength", "minItems", "maxItems", "const", "enum", "allOf", "anyOf",
              "$ref")  # fmt: skip
"""Keywords that it knows in some schemas alone, in the order in which they are given up."""
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")


@dataclass(frozen=True)
class Loosened:
    """The grammar of a schema. dropped: keywords that it does not enforce, with their places."""

    grammar: Grammar
    dropped: tuple[str, ...] = ()


@lru_cache(maxsize=512)
def loosened_grammar(text: str) -> Loosened:
    """Returns the grammar of a schema, loosened where it has to be.

    text: the schema of an object, valid JSON.
    """
    try:
        return Loosened(schema_grammar(text))
    except RefusedGrammarError:
        return _loosened(read_schema(text))


def _loosened(schema: Mapping[str, Any]) -> Loosened:
    dropping = _Dropping(schema)
    schema = dropping.of(narrowed(dropping.readable(schema, "")), "")
    for keyword in (None, *_SOMETIMES):
        if keyword is not None and not (schema := dropping.without(keyword, schema)):
            continue
        try:
            return Loosened(schema_grammar(write_schema(schema)), dropping.names)
        except RefusedGrammarError:
            continue
    return Loosened(schema_grammar('{"type": "object"}'), ("all of it",))


class _Dropping:
    """Drops keywords, and keeps their names."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._names: dict[str, None] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What was dropped."""
        return tuple(self._names)

    def readable(self, schema: Any, place: str, depth: int = 0) -> Any:
        """Returns ``schema`` without keywords whose values make no sense."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            self._note("schema", place)
            return True
        made = dict(schema)
        for keyword, value in schema.items():
            if keyword in _READABLE and not _READABLE[keyword](value):
                del made[keyword]
                if not _says_nothing(keyword, value):
                    self._note(keyword, place)
        return _mapped(
            made, place, lambda subschema, inner: self.readable(subschema, inner, depth + 1)
        )

    def of(self, schema: Any, place: str, depth: int = 0) -> Any:
        """Returns ``schema`` without the keywords that are never enforced."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return schema
        made = dict(schema)
        for keyword in [key for key in schema if key in _UNENFORCED]:
            del made[keyword]
            self._note(keyword, place)
        if "pattern" in made and not is_known_pattern(made["pattern"]):
            self._drop("pattern", made, place)
        if "format" in made and refusal({"json_schema": _only(made, "format")}):
            self._drop("format", made, place)
        if not all(map(is_known_pattern, made.get("patternProperties", ()))):
            self._drop("patternProperties", made, place)
            made.pop("additionalProperties", None)  # which those of the patterns would meet
        if "$ref" in made and not self._is_there(made["$ref"]):
            self._drop("$ref", made, place)
        return _mapped(made, place, lambda subschema, inner: self.of(subschema, inner, depth + 1))

    def without(self, keyword: str, schema: Any, place: str = "", depth: int = 0) -> Any:
        """Returns ``schema`` without one keyword; a choice of one becomes a choice of any."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return schema
        made = dict(schema)
        if keyword in made:
            if keyword == "oneOf":
                made["allOf"] = [*made.get("allOf", ()), {"anyOf": made["oneOf"]}]
            if keyword == "patternProperties":
                made.pop("additionalProperties", None)
            self._drop(keyword, made, place)
        return _mapped(
            made, place, lambda subschema, inner: self.without(keyword, subschema, inner, depth + 1)
        )

    def _is_there(self, ref: str) -> bool:
        """Whether a reference leads to a schema of the same document."""
        place: Any = self._root
        if ref == "#":
            return True
        for part in ref.removeprefix("#/").split("/") if ref.startswith("#/") else ("",):
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(place, Sequence) and name.isdecimal() and int(name) < len(place):
                place = place[int(name)]
            elif isinstance(place, Mapping) and name in place:
                place = place[name]
            else:
                return False
        return isinstance(place, Mapping | bool)

    def _drop(self, keyword: str, made: dict[str, Any], place: str) -> None:
        del made[keyword]
        self._note(keyword, place)

    def _note(self, keyword: str, place: str) -> None:
        self._names[f"{keyword} of {place}" if place else keyword] = None


def _mapped(made: dict[str, Any], place: str, change: Callable[[Any, str], Any]) -> dict[str, Any]:
    """Returns a schema whose inner schemas are changed. change: is given their places, too."""
    for key in _MAPS:
        if key in made:
            names = {name: f"{place}.{name}".lstrip(".") for name in made[key]}
            made[key] = {name: change(part, names[name]) for name, part in made[key].items()}
    for key in _LISTS:
        if key in made:
            made[key] = [change(part, place) for part in made[key]]
    for key in ("items", "additionalProperties", "additionalItems"):
        if isinstance(inner := made.get(key), list):
            made[key] = [change(part, f"{place}[]") for part in inner]
        elif key in made:
            made[key] = change(inner, f"{place}[]" if key.endswith("tems") else f"{place}.*")
    return made


def _only(schema: Mapping[str, Any], keyword: str) -> dict[str, Any]:
    return {"type": "string", keyword: schema[keyword]}


def _says_nothing(keyword: str, value: Any) -> bool:
    """Whether a value, though no schema allows it, can only mean that nothing is said."""
    return value is None or (keyword == "required" and isinstance(value, bool))


def _is_map(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _is_schema(value: Any) -> bool:
    return isinstance(value, Mapping | bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(
        isinstance(type_name, str) and type_name in TYPES for type_name in names
    )


_READABLE: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(_MAPS, _is_map),
    **dict.fromkeys(_LISTS, _is_list),
    **dict.fromkeys(_NUMBERS, _is_number),
    **dict.fromkeys(_COUNTS, _is_count),
    **dict.fromkeys(("pattern", "format", "$ref"), _is_text),
    **dict.fromkeys(("additionalProperties", "additionalItems"), _is_schema),
    "items": lambda value: _is_schema(value) or isinstance(value, list),
    "enum": _is_list,
    "required": _are_texts,
    "type": _is_type,
}
"""Which values of a keyword make sense."""
