"""JSON schemas in the keywords that llguidance enforces, and no wider than they were.

Every text that a narrowed schema allows is allowed by the original, too; a few others are not
written any more. `oneOf` becomes `anyOf` of branches that no value has in common: what two of them
may have in common is left out, as its values are mostly invalid anyway. Dependencies become a
choice between leaving out what depends and having all of it, `not` what it forbids, conditions a
choice between meeting and failing them. What arrays contain comes among the first items, and what
is unique of few values is listed. Formats that JSON Schema does not define say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import permutations
from typing import Any

from edgedec.runtime.sampling.schema_refutations import TYPES, Schema, refutations

FORMATS = frozenset({
    "date-time", "time", "date", "duration", "email", "idn-email", "hostname", "idn-hostname",
    "ipv4", "ipv6", "uri", "uri-reference", "iri", "iri-reference", "uuid", "uri-template",
    "json-pointer", "relative-json-pointer", "regex",
})  # fmt: skip
"""That JSON Schema defines, in its latest draft."""

_YEAR = r"(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_FOURTH = "(?:0[48]|[2468][048]|[13579][26])"
_DAY = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|"
    rf"[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)-02-29)"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_DAYS = {"date": f"^{_DAY}$", "date-time": f"^{_DAY}[Tt]{_TIME}$"}
"""Expressions of formats that the library reads too widely: it has 29 February in any year."""

_LITERAL = re.compile(r"\^([\w -]+)\$")
"""An expression of one name."""
_MAPS = ("properties", "patternProperties", "definitions", "$defs", "dependentSchemas",
         "dependencies")  # fmt: skip
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = ("items", "additionalProperties", "additionalItems", "unevaluatedProperties",
           "unevaluatedItems", "contains", "if", "then", "else")  # fmt: skip
_VALUES = ("const", "enum", "default", "examples")
_MAX_DEPTH = 64
_MAX_REFS = 32
_MAX_BRANCHES = 100
_MAX_CONDITIONS = 8
"""Of one branch: as many branches have as many each, which the library has to multiply out."""
_MAX_STEPS = 20_000
"""Schemas that are looked at to tell branches apart: references may go round in circles."""
_MAX_UNIQUE = 4
"""Maximum number of values for which all arrays without repetition are listed."""
_MAX_PLACES = 8
"""Places of an array at which the first item that is contained may be."""


def narrowed(schema: Schema) -> Schema:
    """Returns ``schema`` in keywords that can be enforced, as far as it can be put in them."""
    return _Narrowing(schema).of(schema, 0)


@dataclass(frozen=True)
class _Facts:
    """What is surely so of the values of a schema.

    types: of the values; an integer is also a number. values: all there are, if few.
    required: properties that objects have. properties: schemas of an object's properties.
    closed: sets of names; objects have no others. items: schemas of an array's items.
    choices: sets of facts, of each of which one is so of a value.
    """

    types: frozenset[str] = TYPES
    values: tuple[Any, ...] | None = None
    required: frozenset[str] = frozenset()
    properties: Mapping[str, tuple[Schema, ...]] = field(default_factory=dict)
    closed: tuple[frozenset[str], ...] = ()
    items: tuple[Schema, ...] = ()
    choices: tuple[tuple[_Facts, ...], ...] = ()

    @property
    def is_object(self) -> bool:
        """No value is anything else."""
        return self.types <= {"object"}

    def and_also(self, other: _Facts) -> _Facts:
        """Returns what is so of the values of both."""
        names = {*self.properties, *other.properties}
        return _Facts(
            self.types & other.types,
            other.values if self.values is None else self.values,
            self.required | other.required,
            {n: (*self.properties.get(n, ()), *other.properties.get(n, ())) for n in names},
            (*self.closed, *other.closed),
            (*self.items, *other.items),
            (*self.choices, *other.choices),
        )

    def may_hold(self, value: Any) -> bool:
        """Says whether a value can be one of these, as far as that is known."""
        if _type_of(value) not in self.types:
            return False
        return self.values is None or any(_is_same(value, allowed) for allowed in self.values)


class _Narrowing:
    def __init__(self, root: Schema) -> None:
        self._root = root
        self._n_left = _MAX_STEPS

    def of(self, schema: Schema, depth: int) -> Schema:
        """Returns a schema, narrowed with all that is in it."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return schema
        made = dict(schema)
        for key in _MAPS:
            if isinstance(inner := made.get(key), Mapping):
                made[key] = {name: self.of(part, depth + 1) for name, part in inner.items()}
        for key in _LISTS:
            if isinstance(inner := made.get(key), list):
                made[key] = [self.of(part, depth + 1) for part in inner]
        for key in _SINGLE:
            if isinstance(inner := made.get(key), Mapping):
                made[key] = self.of(inner, depth + 1)
        if isinstance(made.get("format"), str) and made["format"] not in FORMATS:
            del made["format"]
        if isinstance(schema.get("oneOf"), list) and len(schema["oneOf"]) <= _MAX_BRANCHES:
            self._choose_one(schema, made)
        _write_counts(made)
        _drop_idle(made)
        _close(made)
        _name(made)
        _depend(made)
        _forbid(made, schema)
        _decide(made, schema)
        _contain(made, schema)
        _list_unique(made)
        _count(made)
        return made

    def _choose_one(self, schema: Mapping[str, Any], made: dict[str, Any]) -> None:
        """Has ``anyOf`` take the place of ``oneOf``, if branches that differ are left."""
        around = self.facts({key: value for key, value in schema.items() if key != "oneOf"})
        facts = [around.and_also(self.facts(branch)) for branch in schema["oneOf"]]
        kept = []
        for i, branch in enumerate(made["oneOf"]):
            others = [fact for j, fact in enumerate(facts) if j != i]
            if (apart := self._apart(facts[i], others)) is not None:
                kept.append({"allOf": [branch, *apart]} if apart else branch)
        if kept:
            del made["oneOf"]
            _add(made, {"anyOf": kept})

    def _apart(self, facts: _Facts, others: Sequence[_Facts]) -> list[Schema] | None:
        """Returns what keeps values from being of other branches, too.

        None: nothing does, or only too much.
        """
        parts: list[Schema] = []
        for other in others:
            if self._are_disjoint(facts, other, 0):
                continue
            absent = sorted(other.required - facts.required)
            if facts.is_object and absent:
                parts.append({"properties": {absent[0]: False}})
            elif facts.values and (rest := [v for v in facts.values if not other.may_hold(v)]):
                parts.append({"enum": rest})
            elif self._have_other_items(facts, other):
                parts.append({"minItems": 1})
            elif (name := self._differing_property(facts, other)) is not None:
                parts.append({"required": [name]})
            elif facts.is_object and (names := _own_names(facts, other)):
                parts.append({"anyOf": [{"required": [name]} for name in names]})
            else:
                return None
        return parts if len(parts) <= _MAX_CONDITIONS else None

    def _differing_property(self, a: _Facts, b: _Facts) -> str | None:
        """Returns a property whose values are surely never of both, if objects have one."""
        if not a.is_object:
            return None
        for name in sorted(a.properties.keys() & b.properties.keys()):
            pair = [self._all_facts(facts.properties[name]) for facts in (a, b)]
            if self._are_disjoint(pair[0], pair[1], 0):
                return name
        return None

    def _have_other_items(self, a: _Facts, b: _Facts) -> bool:
        """Says whether no array but the empty one is surely of both."""
        pair = self._all_facts(a.items), self._all_facts(b.items)
        return a.types <= {"array"} and self._are_disjoint(*pair, 0)

    def _are_disjoint(self, a: _Facts, b: _Facts, depth: int) -> bool:
        """Says whether surely no value is of both."""
        if not a.types & b.types:
            return True
        for a_facts, other in ((a, b), (b, a)):
            if a_facts.values is not None and not any(other.may_hold(v) for v in a_facts.values):
                return True
        if depth > _MAX_DEPTH or not self._may_go_on():
            return False
        for a_facts, other in ((a, b), (b, a)):
            for choice in a_facts.choices:
                if all(self._are_disjoint(way, other, depth + 1) for way in choice):
                    return True
        if not (a.is_object or b.is_object):
            return False
        for a_facts, other in ((a, b), (b, a)):
            if any(a_facts.required - names for names in other.closed):
                return True
            for name in a_facts.required & a_facts.properties.keys() & other.properties.keys():
                pair = [self._all_facts(facts.properties[name]) for facts in (a_facts, other)]
                if self._are_disjoint(pair[0], pair[1], depth + 1):
                    return True
        return False

    def _all_facts(self, schemas: Iterable[Schema]) -> _Facts:
        facts = _Facts()
        for schema in schemas:
            facts = facts.and_also(self.facts(schema))
        return facts

    def facts(self, schema: Schema, n_refs: int = 0) -> _Facts:
        """Returns what is surely so of the values of a schema."""
        if schema is False:
            return _Facts(frozenset())
        if not isinstance(schema, Mapping) or n_refs > _MAX_REFS or not self._may_go_on():
            return _Facts()
        if "$ref" in schema:  # of early drafts nothing beside it counts
            return self.facts(self._referred(schema["$ref"]), n_refs + 1)
        facts = _own_facts(schema)
        parts = schema.get("allOf")
        for part in parts if isinstance(parts, list) else ():
            facts = facts.and_also(self.facts(part, n_refs + 1))
        for key in ("anyOf", "oneOf"):
            if isinstance(ways := schema.get(key), list) and ways:
                choice = tuple(self.facts(way, n_refs + 1) for way in ways)
                facts = facts.and_also(_Facts(choices=(choice,)))
        return facts

    def _may_go_on(self) -> bool:
        """Counts a step; says whether another one may be taken."""
        self._n_left -= 1
        return self._n_left > 0

    def _referred(self, ref: Any) -> Schema:
        """Returns the schema that a reference within the document names; True for others."""
        if not isinstance(ref, str) or not ref.startswith("#"):
            return True
        schema: Any = self._root
        for part in ref[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(schema, Mapping) or name not in schema:
                return True
            schema = schema[name]
        return schema if ref == "#" or ref.startswith("#/") else True


def _own_names(facts: _Facts, other: _Facts) -> list[str]:
    """Returns the first closed set of names that has none in common with another, else nothing."""
    for names in facts.closed:
        if names and any(not names & others for others in other.closed):
            return sorted(names)[:_MAX_CONDITIONS]
    return []


def _own_facts(schema: Mapping[str, Any]) -> _Facts:
    """Returns what a schema's own keywords say."""
    types = _names_in(schema["type"]) if "type" in schema else TYPES
    values = schema.get("enum")
    values = tuple(values) if isinstance(values, list) else None
    if "const" in schema:
        values = (schema["const"],)
    if values is None and types == {"string"} and isinstance(schema.get("pattern"), str):
        literal = _LITERAL.fullmatch(schema["pattern"])
        values = (literal[1],) if literal else None
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    required, items = schema.get("required"), schema.get("items")
    return _Facts(
        types | {"integer"} if "number" in types else types,
        values,
        _names_in(required),
        {name: (schema_,) for name, schema_ in properties.items()},
        (frozenset(properties),) if is_closed else (),
        (items,) if isinstance(items, Mapping) and "prefixItems" not in schema else (),
    )


_IDLE_WITHOUT = {"then": "if", "else": "if", "minContains": "contains", "maxContains": "contains"}
"""Keywords that say nothing without another."""
_IN_PLACE = frozenset({
    "allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef", "dependentSchemas",
    "dependencies",
})  # fmt: skip
"""Keywords whose schemas see the same value, and so evaluate parts of it."""


_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
           "minContains", "maxContains")  # fmt: skip


def _write_counts(made: dict[str, Any]) -> None:
    """Writes counts such as 2.0 as whole numbers."""
    for key in _COUNTS:
        if isinstance(made.get(key), float) and made[key].is_integer():
            made[key] = int(made[key])


def _drop_idle(made: dict[str, Any]) -> None:
    """Drops keywords that hold whatever the value."""
    for key, other in _IDLE_WITHOUT.items():
        if other not in made:
            made.pop(key, None)
    if "then" not in made and "else" not in made:
        made.pop("if", None)
    if made.get("uniqueItems") is False:
        del made["uniqueItems"]
    if made.get("minContains") == 0 and "maxContains" not in made:
        del made["minContains"], made["contains"]


def _close(made: dict[str, Any]) -> None:
    """Has what is additional take the place of what is not evaluated, if that is the same."""
    if made.keys() & _IN_PLACE:
        return
    if "unevaluatedProperties" in made:
        made.setdefault("additionalProperties", made.pop("unevaluatedProperties"))
    is_listed = isinstance(made.get("items"), list)
    if "unevaluatedItems" in made and "contains" not in made and not is_listed:
        made.setdefault("items", made.pop("unevaluatedItems"))


def _name(made: dict[str, Any]) -> None:
    """Has known properties and patterns take the place of what names must be."""
    names = made.get("propertyNames")
    names = {} if names is True else names
    if not isinstance(names, Mapping) or names.get("type", "string") != "string":
        return
    said, rest = set(names) - {"type"}, made.get("additionalProperties", True)
    known = made.get("properties", {})
    if not said:
        del made["propertyNames"]
    elif "patternProperties" in made or not isinstance(known, Mapping):
        return
    elif said == {"enum"} or said == {"const"}:
        chosen = _names_in(names["enum"] if said == {"enum"} else names["const"])
        made["properties"] = {name: known.get(name, rest) for name in sorted(chosen)}
        _shut(made)
    elif not known and (pattern := _pattern_of(names)) is not None:
        made["patternProperties"] = {pattern: rest}
        _shut(made)


def _shut(made: dict[str, Any]) -> None:
    del made["propertyNames"]
    made["additionalProperties"] = False


def _pattern_of(names: Mapping[str, Any]) -> str | None:
    """Returns the expression of all names that ``names`` allows, if one says it."""
    said = set(names) - {"type"}
    if said == {"pattern"}:
        return names["pattern"] if isinstance(names["pattern"], str) else None
    least, most = names.get("minLength", 0), names.get("maxLength", "")
    if said <= {"minLength", "maxLength"} and all(
        isinstance(n, int) or n == "" for n in (least, most)
    ):
        return rf"^[\s\S]{{{least},{most}}}$"
    return None


def without_patterns(schema: Schema, is_known: Callable[[str], bool], depth: int = 0) -> Schema:
    """Returns ``schema`` without the expressions that are not known, which lets more values by."""
    if depth > _MAX_DEPTH:
        return schema
    if isinstance(schema, list):
        return [without_patterns(part, is_known, depth + 1) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {key: without_patterns(part, is_known, depth + 1) for key, part in schema.items()}
    if isinstance(pattern := made.get("pattern"), str) and not is_known(pattern):
        del made["pattern"]
    by_pattern = made.get("patternProperties")
    if isinstance(by_pattern, Mapping) and not all(map(is_known, by_pattern)):
        made["patternProperties"] = {k: value for k, value in by_pattern.items() if is_known(k)}
        made.pop("additionalProperties", None)  # which the others would meet
    return made


def with_real_days(schema: Schema, depth: int = 0) -> Schema:
    """Returns ``schema`` with expressions in place of formats of days, which allow real ones."""
    if depth > _MAX_DEPTH:
        return schema
    if isinstance(schema, list):
        return [with_real_days(part, depth + 1) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {
        key: value if key in _VALUES else with_real_days(value, depth + 1)
        for key, value in schema.items()
    }
    day = _DAYS.get(form) if isinstance(form := made.get("format"), str) else None
    if day:
        del made["format"]
        _add(made, {"pattern": day})
    return made


def without_literal_patterns(schema: Schema, depth: int = 0) -> Schema:
    """Returns ``schema`` with properties instead of patterns that match a single name.

    It allows the same. llguidance takes such a pattern beside a property of that name, and then
    finds no text for it.
    """
    if depth > _MAX_DEPTH:
        return schema
    if isinstance(schema, list):
        return [without_literal_patterns(part, depth + 1) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {
        key: value if key in _VALUES else without_literal_patterns(value, depth + 1)
        for key, value in schema.items()
    }
    by_pattern, known = made.get("patternProperties"), made.get("properties", {})
    if not isinstance(by_pattern, Mapping) or not isinstance(known, Mapping):
        return made
    literal = {p: match[1] for p in by_pattern if (match := _LITERAL.fullmatch(p))}
    if literal:
        known = dict(known)
        for pattern, name in literal.items():
            both = [known[name], by_pattern[pattern]] if name in known else []
            known[name] = {"allOf": both} if both else by_pattern[pattern]
        made["properties"] = known
        rest = {p: value for p, value in by_pattern.items() if p not in literal}
        made["patternProperties"] = rest
        if not rest:
            del made["patternProperties"]
    return made


def _depend(made: dict[str, Any]) -> None:
    """Has choices take the place of dependencies."""
    for key in ("dependencies", "dependentRequired", "dependentSchemas"):
        dependents = made.get(key)
        if not isinstance(dependents, Mapping):
            continue
        del made[key]
        for name, needed in dependents.items():
            if isinstance(needed, str):  # as in an early draft
                needed = [needed]
            is_names = isinstance(needed, list)
            then = (
                {"required": [name, *needed]}
                if is_names
                else {"allOf": [{"required": [name]}, needed]}
            )
            _add(made, {"anyOf": [{"properties": {name: False}}, then]})


def _forbid(made: dict[str, Any], schema: Mapping[str, Any]) -> None:
    """Has what remains take the place of ``not``, where that can be said."""
    refused = made.get("not")
    if refused is True or refused == {}:
        del made["not"]
        _add(made, False)
    elif isinstance(refused, Mapping) and set(refused) == {"required"}:
        names = refused["required"]
        if isinstance(names, list) and names:
            del made["not"]
            _add(made, {"anyOf": [{"properties": {name: False}} for name in names]})
            _add(made, {"type": "object"})
    elif isinstance(refused, Mapping) and set(refused) == {"type"}:
        types = _names_in(refused["type"])
        if types and "integer" not in types:  # other numbers have no name
            rest = TYPES - types - ({"integer"} if "number" in types else set())
            del made["not"]
            _add(made, {"type": sorted(rest)})
    elif ways := refutations(schema.get("not")):
        del made["not"]
        _add(made, {"anyOf": ways})


def _decide(made: dict[str, Any], schema: Mapping[str, Any]) -> None:
    """Has a choice take the place of ``if``, where values that fail it can be described."""
    if "if" not in made or not (ways := refutations(schema["if"])):
        return
    condition = made.pop("if")
    then, otherwise = made.pop("then", True), made.pop("else", True)
    failed = [{"allOf": [way, otherwise]} for way in ways]
    _add(made, {"anyOf": [{"allOf": [condition, then]}, *failed]})


def _contain(made: dict[str, Any], schema: Mapping[str, Any]) -> None:
    """Has a choice of places take the place of what an array is to contain.

    The contained items stand next to each other. Under `maxContains` all other items are known not
    to match.
    """
    least, most = made.get("minContains", 1), made.get("maxContains")
    sizes = (least, made.get("minItems", 0), made.get("maxItems", _MAX_PLACES + least))
    if "contains" not in made or not all(isinstance(n, int) for n in (*sizes, most or 0)):
        return
    if isinstance(made.get("items", True), list) or not 0 <= least <= _MAX_PLACES:
        return
    others: list[Schema] = [True]
    if most is not None and most < sizes[2] + (0 if "maxItems" in made else 1):
        others = refutations(schema.get("contains"))
    counts = [least] if others == [True] else range(least, min(most or 0, _MAX_PLACES) + 1)
    if not others:
        return
    contained = made.pop("contains")
    for key in ("minContains", "maxContains"):
        made.pop(key, None)
    other = others[0] if len(others) == 1 else {"anyOf": others}
    ways = [
        {"prefixItems": [other] * n + [contained] * count, "items": other, "minItems": n + count}
        for count in counts
        for n in range(_MAX_PLACES)
        if n + count <= sizes[2]
    ]
    _add(made, {"anyOf": ways} if ways else False)


def _list_unique(made: dict[str, Any]) -> None:
    """Has all arrays of few values take the place of items that are unique."""
    most, items = made.get("maxItems"), made.get("items")
    if made.get("uniqueItems") is not True:
        return
    if isinstance(most, int) and most <= 1:
        del made["uniqueItems"]
    elif set(made) <= _UNIQUE_KEYS and made.get("type") == "array" and isinstance(items, Mapping):
        values = [True, False] if items.get("type") == "boolean" else items.get("enum")
        if set(items) - {"type"} <= {"enum"} and isinstance(values, list):
            _list_arrays(made, values)


_UNIQUE_KEYS = {"type", "items", "minItems", "maxItems", "uniqueItems", "title", "description"}


def _list_arrays(made: dict[str, Any], values: Sequence[Any]) -> None:
    different = [v for i, v in enumerate(values) if not any(_is_same(v, w) for w in values[:i])]
    least, most = made.get("minItems", 0), made.get("maxItems", len(different))
    if len(different) > _MAX_UNIQUE or not (isinstance(least, int) and isinstance(most, int)):
        return
    sizes = range(least, min(most, len(different)) + 1)
    for key in ("type", "items", "minItems", "maxItems", "uniqueItems"):
        made.pop(key, None)
    made["enum"] = [list(order) for n in sizes for order in permutations(different, n)]


def _count(made: dict[str, Any]) -> None:
    """Drops bounds on the number of properties that hold anyway."""
    properties, required = made.get("properties"), made.get("required")
    is_closed = made.get("additionalProperties") is False and "patternProperties" not in made
    most, least = made.get("maxProperties"), made.get("minProperties")
    n_known = len(properties) if isinstance(properties, Mapping) else 0
    if is_closed and isinstance(most, int) and most >= n_known:
        del made["maxProperties"]
    if isinstance(least, int) and least <= len(_names_in(required)):
        del made["minProperties"]


def _add(made: dict[str, Any], condition: Schema) -> None:
    """Has values meet one more condition."""
    others = made.get("allOf")
    made["allOf"] = [*(others if isinstance(others, list) else ()), condition]


def _names_in(value: Any) -> frozenset[str]:
    """Returns a text, or the texts in a list; nothing of what a schema should not hold."""
    values = value if isinstance(value, list) else [value]
    return frozenset(value for value in values if isinstance(value, str))


def _type_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
    if isinstance(value, float | Decimal):
        return "integer" if value == int(value) else "number"
    return names.get(type(value), "null")


def _is_same(a: Any, b: Any) -> bool:
    """Says whether JSON takes two values for one: true is not 1."""
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)
