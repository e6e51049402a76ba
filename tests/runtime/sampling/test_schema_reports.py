"""Schemas of kinds that users of other libraries reported as broken there."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import pytest

from edgedec.models.errors import ConfigError
from edgedec.runtime.sampling.grammar import Grammars

from .test_schema_numbers import allows, fuzz, grammars

__all__ = ["fuzz", "grammars"]  # fixtures

jsonschema = pytest.importorskip("jsonschema", reason="needs the extra eval")

ASCII_CLASSES = {  # by ECMA-262, where Python's expressions differ
    r"^\d$": "1", r"^\w$": "1LAK_", r"^[\w-]$": "1LAK_-", r"^\D$": "১ŁLAK_é -😀\u2028[]&~+/^,",
    r"^\p{L}$": "ŁLAKé", r"^\p{Lu}$": "ŁLAK", r"^\P{L}$": "1১_ -😀\u2028[]&~+/^,",
    r"^\p{Script=Cyrillic}$": "", r"^\u{1F600}$": "😀", r"^\u00e9$": "é",
}  # fmt: skip


@pytest.mark.parametrize("pattern", ASCII_CLASSES)
def test_classes_of_characters_are_those_of_ecma(grammars: Grammars, pattern: str) -> None:
    characters = "1১ŁLAK_é -😀\u2028[]&~+/^,"
    schema = {"type": "string", "pattern": pattern}
    allowed = {c for c in characters if allows(grammars, schema, json.dumps(c, ensure_ascii=False))}
    assert allowed == set(ASCII_CLASSES[pattern])


@pytest.mark.filterwarnings("ignore:Possible (nested set|set .*) at:FutureWarning")
@pytest.mark.parametrize(
    "pattern",
    [
        "^[[a]]$", "^[a&&b]$", "^[a-e&&[de]]$", "^[+--/]$", "^[~~a]$", "^[[:digit:]]$", "^[a[]$",
        "^[^[a]]$", "^[a-d--b]$", "^[!--]+$", "^[]a]$", "^[a-]$", r"^[a\]&&b]$", r"^[\w&&\d]$",
        r"^[\[\]]$", r"^\[[a[]\]$", r"^[$&+,:;=?@#|'<>.^*()%!-]+$", r"^[a\-&&]$", "^[--a]$",
        r"^(?:[^&~[]|\[)$", "^[&&]$", "^[^--]$",
    ],
)  # fmt: skip
def test_classes_hold_no_operators(grammars: Grammars, pattern: str) -> None:
    """Judged by Python's expressions, which read these as ECMA-262 does."""
    texts = [*"abcde01[]&~-+/,.^!:$x", "a]", "[]", ":]", "d]", "e]", "&&", "[a]", "[[]", "--", ""]
    schema, rule = {"type": "string", "pattern": pattern}, re.compile(pattern)
    allowed = [text for text in texts if allows(grammars, schema, json.dumps(text))]
    assert allowed == [text for text in texts if rule.search(text)]


def test_names_by_pattern_follow_the_same_rules(grammars: Grammars) -> None:
    schema = {"patternProperties": {"^[a&&b]$": {"const": 1}}, "additionalProperties": False,
              "type": "object"}  # fmt: skip
    texts = ['{"a": 1}', '{"&": 1}', '{"a": 2}', '{"c": 1}', "{}"]
    assert [allows(grammars, schema, text) for text in texts] == [True, True, False, False, True]


NUMBERS = (
    "0 1 -1 5 10 1.0 0.01 0.1 0.15 0.05 0.3 0.6 0.5 2.5 7.5 3 -3 1.5 6 4.5 -6 100 18.15 2.99 0.001 "
    "1070468.14 5000000 1.3 0.015 9007199254740993.5 1.e2 0.e2 -1.e2 .5 5. 01 +1 -.5 1e 1_000 0x10 "
    "NaN Infinity -Infinity"
)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number", "multipleOf": 0.01},
        {"type": "number", "multipleOf": 0.1},
        {"type": "number", "multipleOf": 2.5},
        {"type": "number", "multipleOf": 0.001},
        {"type": "number", "multipleOf": 3},
        {"type": "integer", "multipleOf": 0.5},
        {"type": "integer", "multipleOf": 2.5},
        {"type": "number", "multipleOf": 0.05, "minimum": 0, "maximum": 1},
        {"type": "number", "multipleOf": 0.5, "minimum": 0.5, "exclusiveMaximum": 3},
        {"type": "number", "multipleOf": 1.5, "minimum": -6, "maximum": 6},
        {"type": "number", "allOf": [{"multipleOf": 0.2}, {"multipleOf": 0.3}]},
        {"type": "number"},
        {"type": "number", "minimum": -1.5, "maximum": 100},
        {"type": ["integer", "null"], "multipleOf": 5},
    ],
    ids=json.dumps,
)
def test_decimal_steps_and_the_form_of_numbers(grammars: Grammars, schema: Any) -> None:
    """Judged by jsonschema with decimals."""
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    judge = jsonschema.Draft202012Validator(exact)

    def is_valid(text: str) -> bool:
        if not re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?", text):
            return False  # no number of JSON
        return bool(judge.is_valid(json.loads(text, parse_float=Decimal)))

    texts = NUMBERS.split()
    allowed = [text for text in texts if allows(grammars, schema, text)]
    assert allowed == [text for text in texts if is_valid(text)]


N = {"type": "integer"}
REFERENCES: list[Any] = [
    {"$ref": "#/definitions/foo", "definitions": {"foo": {"type": "string"}}},
    {"$ref": "#/$defs/foo", "maxLength": 1, "$defs": {"foo": {"type": "string"}}},
    {"$ref": "#/definitions/e", "definitions": {"e": {
        "type": "object", "properties": {"p": {"$ref": "#/definitions/s"}},
        "definitions": {"unused": {"type": "null"}}}, "s": {"type": "string"}}},
    {"$ref": "#/$defs/e", "$defs": {"e": {
        "properties": {"p": {"$ref": "#/$defs/e/$defs/t"}}, "$defs": {"t": {"type": "null"}}}}},
    {"properties": {"a": {"$ref": "#/$defs/n", "minimum": 3}}, "$defs": {"n": {**N, "maximum": 5}}},
    {"properties": {"a~b": N, "c/d": {"$ref": "#/properties/a~0b"},
                    "e": {"$ref": "#/properties/c~1d"}}},
    {"properties": {"a b": N, "e": {"$ref": "#/properties/a%20b"}, "é": {"type": "null"},
                    "f": {"$ref": "#/properties/%C3%A9"}}},
    {"$ref": "#/$defs/A", "$defs": {"B": {"type": "string"}, "A": {
        "$id": "https://x.org/a", "$defs": {"B": N}, "properties": {"p": {"$ref": "#/$defs/B"}}}}},
    {"$id": "https://x.org/root", "properties": {"p": {"$ref": "/b"}},
     "$defs": {"b": {"$id": "b", **N}}},
    {"properties": {"p": {"$ref": "#name"}}, "$defs": {"b": {"$anchor": "name", **N}}},
    {"allOf": [{"$ref": "#/$defs/a"}, {"properties": {"q": N}, "required": ["q"]}],
     "$defs": {"a": {"type": "object", "properties": {"p": N}, "required": ["p"]}}},
    {"type": "object", "properties": {"p": {"enum": ["a", 1]}, "q": {}},
     "if": {"properties": {"p": {"const": "a"}}, "required": ["p"]}, "then": {"required": ["q"]},
     "else": {"properties": {"q": False}}},
    {"type": "object", "properties": {"p": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
     "additionalProperties": False},
    {"properties": {"$ref": N, "p": {"const": {"$ref": "#/x"}}}},
    {"enum": [{"$ref": "#/a"}, {"p": 1}]},
    {"properties": {"p": {"$ref": "#/$defs/x"}}, "patternProperties": {"^p": {"minimum": 3}},
     "$defs": {"x": N}},
    {"$ref": "#/properties/p", "properties": {"p": N}},
    {"type": "object", "dependentSchemas": {"p": {"$ref": "#/$defs/n"}}, "properties": {"p": N},
     "$defs": {"n": {"required": ["q"]}}},
    {"$ref": "#/$defs/a/allOf/0", "$defs": {"a": {"allOf": [N]}}},
    {"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"enum": [1, "a"]}}},
]  # fmt: skip
VALUES: list[Any] = [
    1, 5, 2.5, "a", "ab", "", None, True, [], [1], ["a"], [1, "a"], [2], {}, {"p": 1}, {"p": "a"},
    {"p": None}, {"p": 5}, {"q": 1}, {"p": 1, "q": 1}, {"p": "a", "q": 1}, {"a": 4}, {"a": 2},
    {"a": "x"}, {"a": 6}, {"a~b": 1}, {"c/d": 1}, {"c/d": "s"}, {"e": 1}, {"e": "x"}, {"f": None},
    {"f": 1}, {"p": {"p": None}}, {"p": {"p": 1}}, {"p": {}}, {"x": 1}, {"$ref": 1}, {"$ref": "#"},
    {"$ref": "#/a"}, {"p": {"$ref": "#/x"}}, {"p": {"$ref": "#/y"}}, {"pp": 1}, {"pp": 3},
]  # fmt: skip


@pytest.mark.parametrize("schema", REFERENCES, ids=range(len(REFERENCES)))
def test_references_lead_where_jsonschema_goes(grammars: Grammars, schema: Any) -> None:
    judge = jsonschema.Draft202012Validator(schema)
    allowed = [value for value in VALUES if allows(grammars, schema, json.dumps(value))]
    assert allowed == [value for value in VALUES if judge.is_valid(value)]


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/missing", "$defs": {}},
        {"$ref": "other.json#/x"},
        {"properties": {"p": {"$dynamicRef": "#n"}}, "$defs": {"b": {"$dynamicAnchor": "n", **N}}},
    ],
    ids=range(4),
)
def test_references_that_lead_nowhere_are_refused(grammars: Grammars, schema: Any) -> None:
    with pytest.raises(ConfigError, match=r"\$(dynamicR|r)ef"):
        allows(grammars, schema, "1")
