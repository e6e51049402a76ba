"""Numbers of schemas that no float holds; `tools/fuzz/schema_numbers.py` draws more of them."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.sampling.grammar import Grammars

pytest.importorskip("llguidance", reason="needs the extra grammar")
pytest.importorskip("jsonschema", reason="needs the extra eval")

FUZZ = Path(__file__).parents[3] / "tools/fuzz"
LONG = 2**63 + 1
INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}


@pytest.fixture(scope="module")
def fuzz() -> Iterator[Any]:
    """The module of the fuzzing tool."""
    sys.path.insert(0, str(FUZZ))
    yield importlib.import_module("schema_numbers")
    sys.path.remove(str(FUZZ))


@pytest.fixture(scope="module")
def grammars(fuzz: Any) -> Grammars:
    return Grammars(fuzz.ByteCodec(), fuzz.N_IDS)


def allows(grammars: Grammars, schema: Any, text: str) -> bool:
    """Whether ``text`` is a whole output."""
    mask = grammars.mask(GenerationConfig(json_schema=schema), frozenset({256}))
    assert mask is not None
    for token in text.encode():
        row = mask.row_after(())
        if mask.is_finished or (row is not None and not row[token]):
            return False
        mask.accept(token)
    row = mask.row_after(())
    return row is None or bool(row[256])


def texts(*days: str, end: str = "") -> list[str]:
    return [f'"{day}{end}"' for day in days]


DAY = {"type": "string", "format": "date"}
EXACT: list[tuple[Any, list[str], list[str]]] = [
    (DAY, texts("2024-02-29", "2000-02-29", "2023-02-28", "0001-12-31", "9999-11-30"),
     texts("2023-02-29", "1900-02-29", "2024-02-30", "2024-04-31", "2024-13-01", "0000-01-01")),
    ({"type": "string", "format": "date-time"}, texts("2024-02-29", end="T23:59:59.25Z"),
     texts("2023-02-29", "2100-02-29", end="T00:00:00+01:00")),
    ({**DAY, "pattern": "^2023-"}, texts("2023-02-28"), texts("2024-02-28", "2023-02-29")),
    ({"anyOf": [DAY, {"type": "null"}]}, [*texts("1996-02-29"), "null"], texts("1997-02-29")),
    ({"const": 1234567890123456789}, ["1234567890123456789"], ["1234567890123456768"]),
    ({"enum": [2**53 + 1, "a"]}, ["9007199254740993", '"a"'], ["9007199254740992"]),
    ({"type": "integer", "maximum": 999999999999999999}, ["999999999999999999", "-5"],
     ["1000000000000000000"]),
    (INT64, [str(2**63 - 1), str(-(2**63)), "0"], [str(2**63), str(-(2**63) - 1)]),
    ({"type": "integer", "minimum": 0, "maximum": 2**64 - 1}, [str(2**64 - 1)], [str(2**64), "-1"]),
    ({"type": "integer", "exclusiveMinimum": 2**53, "exclusiveMaximum": 2**53 + 2},
     [str(2**53 + 1)], [str(2**53), str(2**53 + 2)]),
    ({"type": "integer", "multipleOf": 2**53 + 1}, ["0", str(2**53 + 1), str(-3 * (2**53 + 1))],
     [str(2**53), "1"]),
    ({"type": "integer", "multipleOf": 7, "minimum": 2**60}, [str((2**60 // 7 + 1) * 7)],
     [str(2**60), "7"]),
    ({"type": "integer", "multipleOf": 2**24}, [str(2**24), "0"], [str(2**23)]),
    ({"type": "integer", "multipleOf": 999983}, ["0", "-999983"], ["1", "999982"]),
    ({"type": "integer", "multipleOf": 1000000}, ["0", "7000000", str(10**12)], ["100000"]),
    ({"type": "number", "multipleOf": 0.0001}, ["0.0001", "123456"], ["0.00001"]),
    ({"minimum": LONG}, [str(LONG), str(LONG) + ".5", '"a"', "{}"], [str(LONG - 1)]),
    ({"type": "number", "maximum": 3.4028234663852886e38}, ["1.5", "-7"], ["1" + "0" * 39]),
    ({"const": {"id": [LONG, None]}}, [f'{{"id":[{LONG},null]}}', f'{{ "id": [{LONG}, null] }}'],
     [f'{{"id":[{LONG - 1},null]}}']),
    ({"type": ["integer", "null"], "minimum": LONG}, ["null", str(LONG)], ['"a"', "5"]),
    ({"type": "array", "items": INT64, "maxItems": 2}, ["[]", f"[{2**63 - 1}, 5]"],
     [f"[{2**63}]", "[1,1,1]"]),
    ({"type": "array", "items": {}, "prefixItems": [{"const": LONG}], "minItems": 1},
     [f"[{LONG}]", f'[{LONG}, "a"]'], ["[]", f"[{LONG - 1}]"]),
    ({"type": "object", "properties": {"id": INT64, "n": {"type": "string"}}, "required": ["n"],
      "additionalProperties": {"const": LONG}},
     ['{"n": "a"}', '{"id": 5, "n": "a"}', f'{{"n": "a", "z": {LONG}}}'],
     ['{"id": 5}', f'{{"id": {2**63}, "n": "a"}}', '{"n": "a", "z": 1}', '{"n": "a", "n": "b"}']),
    ({"$defs": {"n": {"type": "object", "properties": {"v": INT64, "next": {"$ref": "#/$defs/n"}},
                      "required": ["v"], "additionalProperties": False}}, "$ref": "#/$defs/n"},
     [f'{{"v": {2**63 - 1}, "next": {{"v": 1}}}}'], [f'{{"v": 1, "next": {{"v": {2**63}}}}}']),
    ({"type": "object", "properties": {"a": {"$ref": "#/$defs/s"}, "b": {"const": LONG}},
      "required": ["a", "b"], "$defs": {"s": {"type": "string", "maxLength": 1}}},
     [f'{{"a": "x", "b": {LONG}}}'], [f'{{"a": "xy", "b": {LONG}}}']),
    ({"allOf": [INT64, {"minimum": 2**63 - 2}]}, [str(2**63 - 1)], ["5", str(2**63)]),
    ({"anyOf": [{"const": LONG}, {"type": "string"}]}, [str(LONG), '"a"'], [str(LONG + 1)]),
    ({"oneOf": [{"const": LONG}, {"const": LONG + 1}]}, [str(LONG), str(LONG + 1)], ["5"]),
    ({"not": {"const": LONG}, "type": "integer"}, [str(LONG - 1)], [str(LONG)]),
    ('{"type": "integer", "minimum": 9007199254740993.0}', [str(2**53 + 1)], [str(2**53)]),
    ('{"type": "number", "minimum": 0.10000000000000000000001, "maximum": 0.2}', ["0.2"],
     ["0.1"]),
    ('{"const": 12345678901234567890.5}', ["12345678901234567890.5"], ["12345678901234567890"]),
    ({"type": "integer", "maximum": 10**400}, [str(10**39), "5"], [str(10**401)]),
    ({"const": 10**400}, [str(10**400)], [str(10**400 + 1)]),
    ({"type": "integer", "exclusiveMinimum": 1e300}, [str(10**300 + 1), "2" * 301, "1" * 302],
     [str(10**300), "9" * 300]),
    ({"type": "number", "exclusiveMaximum": -(10**1000)}, [f"-{10**1000 + 7}"], [f"-{10**1000}"]),
    ({"anyOf": [{"const": LONG}, {"type": "integer", "minimum": 2, "maximum": 1}]}, [str(LONG)],
     ["1", "2"]),
    ({"properties": {"a": {"const": LONG}, "b": {"type": "string", "minLength": 3, "maxLength": 2}},
      "type": "object"}, [f'{{"a": {LONG}}}'], ['{"b": "abc"}']),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "right", "wrong"), EXACT)
def test_long_numbers_are_exact(
    grammars: Grammars, schema: Any, right: list[str], wrong: list[str]
) -> None:
    assert [text for text in right if not allows(grammars, schema, text)] == []
    assert [text for text in wrong if allows(grammars, schema, text)] == []


REFUSED: list[tuple[Any, str]] = [
    ({"oneOf": [INT64, {"minimum": LONG}]}, "oneOf"),
    ({"type": "array", "items": INT64, "uniqueItems": True}, "uniqueItems"),
    ({"type": "object", "minProperties": 2, "properties": {"a": INT64, "b": {}, "c": {}}},
     "minProperties"),
    ({"type": "object", "patternProperties": {"^a": INT64}}, "patternProperties"),
    ({"$ref": "https://example.com/x", "minimum": LONG}, r"\$ref"),
    ({"minimum": LONG, "maximum": LONG - 1, "type": "integer"},
     f"maximum {LONG - 1}, minimum {LONG}: no"),
    ({"type": "integer", "allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}, "multipleOf"),
    ('{"const": Infinity}', "Infinity"),
    ({"type": "integer", "exclusiveMinimum": 20, "exclusiveMaximum": 21},
     "exclusiveMaximum 21, exclusiveMinimum 20: no integer fits"),
    ({"type": "integer", "minimum": 3, "maximum": 4, "multipleOf": 5}, "multipleOf 5: no integer"),
    ({"type": "object", "properties": {"a": {"minimum": LONG, "maximum": 5, "type": "integer"},
                                       "b": {"type": "integer", "minimum": 2, "maximum": 1}},
      "required": ["b"]}, "maximum 1, minimum 2: no integer fits"),
    ({"type": "array", "minItems": 3, "maxItems": 2, "items": INT64}, "minItems 3: no more than 2"),
    ({"type": "array", "minItems": 2, "items": {"type": "integer", "minimum": 7, "maximum": 6}},
     "maximum 6, minimum 7"),
    ({"allOf": [{"enum": [1, 2]}, {"enum": [LONG]}]}, "allOf: no value fits all of its parts"),
    ({"enum": [LONG, 7], "maximum": 5}, "enum: none of its values fits"),
    ({"allOf": [{"type": "string"}, {"type": "integer", "minimum": LONG}]}, "type: no type is in"),
    ({"type": "integer", "minimum": 10**300, "maximum": 10**299}, r"maximum 10+\.{3}, minimum 10+"),
    ({"type": "number", "minimum": 10**3500 + 1}, "minimum: the library refuses .* use fewer"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "word"), REFUSED)
def test_what_cannot_be_exact_is_refused_by_its_keyword(
    grammars: Grammars, schema: Any, word: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^json_schema is refused: [^\n]*{word}[^\n]*$") as e:
        grammars.mask(GenerationConfig(json_schema=schema), frozenset({256}))
    assert "start:" not in str(e.value)


@pytest.mark.slow
def test_texts_that_chance_writes_are_valid_in_exact_numbers(fuzz: Any) -> None:
    n_refused, n_judged = fuzz.check(range(100_000, 100_120))
    assert n_judged > 150
    assert n_refused < 15


def test_strings_may_hold_escapes_of_letters(grammars: Grammars) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 2}}}
    for text in (r'"\u00e9"', '"é"', r'"\ud83d\ude00x"', r'"\n"', r'"\u000a"'):
        assert allows(grammars, schema, f'{{"a":{text}}}'), text
        assert len(json.loads(text)) <= 2
    for text in (r'"\ud83d"', r'"\u00e9\u00e9\u00e9"', r'"\x"'):
        assert not allows(grammars, schema, f'{{"a":{text}}}'), text


TEXTS = [*map(chr, range(256)), "\u2028", "\ud7ff", "\ue000", "\uffff", "\U0001f600", "\U0010ffff"]
"""All kinds of characters that JSON escapes, some that it does not, and the ends of ranges."""


@pytest.mark.parametrize(
    "schema",
    [
        lambda text: {"type": "string"},
        lambda text: {"const": text},
        lambda text: {"enum": ["zz", text]},
        lambda text: {"enum": [LONG, text]},
        lambda text: {"type": "string", "pattern": r"^[\s\S]$"},
        lambda text: {"type": "string", "maxLength": 1},
    ],
)
def test_every_text_can_be_written_though_not_with_every_escape(
    grammars: Grammars, schema: Any
) -> None:
    for text in TEXTS:
        spellings = (json.dumps(text, ensure_ascii=False), json.dumps(text))
        assert any(allows(grammars, schema(text), one) for one in spellings), ascii(text)


def test_every_name_can_be_written(grammars: Grammars) -> None:
    for text in TEXTS:
        schema = {"type": "object", "properties": {text: {}}, "required": [text]}
        spellings = (json.dumps({text: 1}, ensure_ascii=False), json.dumps({text: 1}))
        assert any(allows(grammars, schema, one) for one in spellings), ascii(text)


CONTAINS: list[tuple[Any, list[str], list[str]]] = [
    ({"contains": {"const": 1}, "type": "array"}, ["[2,1]", "[1,2]", "[2,2,1,2]"], ["[2]", "[]"]),
    ({"contains": {"const": 1}, "minContains": 2}, ["[1,1]", "[2,1,1]", '"a"'], ["[2,1]", "[1]"]),
    ({"contains": {"const": 1}, "maxContains": 2, "type": "array"}, ["[2,1]", "[1,1]", "[2,1,1,2]"],
     ["[1,1,1]", "[1,2,1,1]", "[]"]),
    ({"contains": {"const": 1}, "minContains": 0, "maxContains": 1, "type": "array"},
     ["[]", "[2]", "[2,1,2]"], ["[1,1]", "[1,2,1]"]),
    ({"contains": {"minimum": 5}, "type": "array", "items": {"type": "integer"}, "minItems": 2,
      "maxItems": 3}, ["[2,7]", "[7,2]", "[1,2,7]"], ["[7]", "[1,2]", "[1,2,3,7]", '["a",7]']),
    ({"contains": {"type": "integer"}, "type": "array", "prefixItems": [{"type": "string"}]},
     ['["a",1]'], ['["a"]', "[1]"]),
    ({"contains": {"const": LONG}, "type": "array"}, [f"[2,{LONG}]"], [f"[2,{LONG - 1}]"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "right", "wrong"), CONTAINS)
def test_what_arrays_contain_may_stand_anywhere(
    grammars: Grammars, schema: Any, right: list[str], wrong: list[str]
) -> None:
    assert [text for text in right if not allows(grammars, schema, text)] == []
    assert [text for text in wrong if allows(grammars, schema, text)] == []


LITERAL: list[tuple[Any, list[str], list[str]]] = [
    ({"type": "object", "properties": {"score": {"type": "integer", "multipleOf": 5}},
      "required": ["score"], "additionalProperties": False,
      "patternProperties": {"^score$": {"type": "integer", "minimum": 10}}},
     ['{"score": 15}'], ['{"score": 5}', '{"score": 12}', "{}", '{"scores": 15}']),
    ({"type": "object", "patternProperties": {"^a$": {"type": "integer"}, "^b": {"type": "null"}},
      "additionalProperties": False}, ['{"a": 1}', '{"a": 1, "b2": null}', "{}"],
     ['{"a": null}', '{"c": 1}', '{"b2": 1}']),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "right", "wrong"), LITERAL)
def test_patterns_of_one_name_are_properties(
    grammars: Grammars, schema: Any, right: list[str], wrong: list[str]
) -> None:
    assert [text for text in right if not allows(grammars, schema, text)] == []
    assert [text for text in wrong if allows(grammars, schema, text)] == []


THREADS: list[tuple[Any, list[str], list[str]]] = [
    ({"type": "string"}, [r'"\u0009"', r'"\t"'], ['"\t"', '"\n"', '"\x00"']),
    ({"type": "string", "pattern": r"^\s$"}, [r'"\t"', '" "'], ['"\t"']),
    ({"type": "object", "properties": {"a": {"type": "string", "pattern": r"\S"}}},
     ['{"a": " x"}'], ['{"a": "  "}']),
    ({"type": "object", "properties": {}, "additionalProperties": False}, ["{}", "{ }"],
     ['{"a": 1}']),
    ({"type": "object", "properties": {f"p{i}": {"type": "string", "minLength": 1,
                                                 "maxLength": 65536} for i in range(12)}},
     ['{"p0": "a"}'], ['{"p0": ""}']),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]},
      "additionalProperties": False}, ['{"b": 1}', '{"a": 1, "b": 2}'], ['{"a": 1}']),
]  # fmt: skip
"""Schemas that other libraries' users reported as broken there."""


@pytest.mark.parametrize(("schema", "right", "wrong"), THREADS)
def test_schemas_of_public_reports(
    grammars: Grammars, schema: Any, right: list[str], wrong: list[str]
) -> None:
    assert [text for text in right if not allows(grammars, schema, text)] == []
    assert [text for text in wrong if allows(grammars, schema, text)] == []
