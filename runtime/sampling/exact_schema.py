"""Grammars of schemas with numbers that need more digits than a float holds.

llguidance reads every number of a schema as a float. So what leads to a number that no float holds
is written here as rules in Lark, and the number itself as a regular expression. All the rest is
left to the library. A few valid values are not written: of multiples of a large number, those far
from zero; of objects, names that an expression in ``patternProperties`` allows.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from edgedec.models.errors import RefusedGrammarError
from edgedec.runtime.sampling import number_patterns
from edgedec.runtime.sampling.number_patterns import Bounds
from edgedec.runtime.sampling.schema_ways import (
    ANNOTATIONS,
    KEYWORDS,
    Plain,
    UnsupportedKeywordError,
    exact,
    property_schemas,
    referred,
    refuse,
    types_of,
    ways,
)

_MAX_EXACT = 2**53
"""Integers up to here are floats, too."""
_MAX_FLOAT_DIGITS = 15
_MAX_STEP = 10**4
_MAX_STEPS = 10**5
"""Of a step, and of the common multiple of all steps, trailing zeros aside: with more of them the
library takes seconds, or minutes, to see that some number fits."""
_MAX_COEFFICIENT = 2**32
_MAX_DIGITS = 4000
_MAX_SHOWN = 60
_NUMBER_KEYS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_COMMA = ' "," '
_LETTER = r'[^"\\\x00-\x1F\x7F]|\\["\\bfnrt]'


def read_schema(text: str) -> Any:
    """Returns a schema, whose numbers are exact: a decimal where no float says the same."""
    return json.loads(text, parse_float=_read_decimal, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> Any:
    raise RefusedGrammarError(f"json_schema is refused: it has {name}, which is not JSON")


def _read_decimal(text: str) -> Any:
    number = Decimal(text)
    if number == number.to_integral_value() and number.adjusted() < _MAX_DIGITS:
        is_float = abs(number) <= _MAX_EXACT
        return float(text) if is_float else int(number)
    return float(text) if Decimal(repr(float(text))) == number else number


def write_schema(schema: Any) -> str:
    """Returns a schema as JSON; decimals only where nothing depends on their digits."""
    return json.dumps(schema, default=float)


def needs_exact_numbers(schema: Any) -> bool:
    """Whether a schema has a number in a place where a float would change what it allows."""
    return next(long_numbers(schema), None) is not None


def long_numbers(schema: Any) -> Iterator[str]:
    """Yields the keywords of numbers that floats would change."""
    if isinstance(schema, list):
        for part in schema:
            yield from long_numbers(part)
    if not isinstance(schema, Mapping):
        return
    for key, value in schema.items():
        if key in ("default", "examples", "x-guidance"):
            continue
        if key in _MAPS and isinstance(value, Mapping):
            for part in value.values():
                yield from long_numbers(part)
        elif key in _LONG:
            if _LONG[key](value):
                yield key
        else:
            yield from long_numbers(value)


def exact_grammar(
    schema: Any, space: str, options: Mapping[str, Any], check: Callable[[Any], str]
) -> str:
    """Returns the grammar, in Lark, of a schema with long numbers.

    schema: as `read_schema` returns it. space: the lines that allow white space. options: of the
        library. check: says why the library refuses a schema; empty if it does not.

    Raises:
        UnsupportedKeywordError: A keyword cannot be enforced here, or no value fits the schema.
    """
    rules = _Rules(schema, options, check)
    start = rules.value(schema)
    if start is None:
        raise UnsupportedKeywordError(rules.why_empty)
    return f"{space}start: {start}\n" + rules.text


def why_empty(schema: Any, check: Callable[[Any], str]) -> str:
    """Returns which keyword leaves no value to a schema; empty if that cannot be seen."""
    rules = _Rules(schema, {}, check, are_all_exact=True)
    try:
        return "" if rules.value(schema) is not None else rules.why_empty
    except UnsupportedKeywordError:
        return ""


class _Rules:
    """Rules of a grammar; each value's rule is a name."""

    def __init__(
        self,
        root: Any,
        options: Mapping[str, Any],
        check: Callable[[Any], str],
        are_all_exact: bool = False,
    ) -> None:
        """are_all_exact: the library follows no schema of numbers, objects or arrays by itself."""
        self._root = root
        self._options = options
        self._check = check
        self._are_all_exact = are_all_exact
        self._lines: list[str] = []
        self._n_rules = 0
        self._of_refs: dict[str, str | None] = {}
        self._empty: list[str] = []  # why schemas have no value, of those that matter

    @property
    def why_empty(self) -> str:
        """The first keyword that leaves no value."""
        return next(iter(self._empty), "no value fits it")

    @property
    def text(self) -> str:
        """All rules."""
        return "\n".join(self._lines) + "\n"

    def value(self, schema: Any) -> str | None:
        """Returns the rule of a schema's values; None if there are none."""
        n_empty = len(self._empty)
        rule = self._value(schema)
        if rule is not None:
            del self._empty[n_empty:]
        return rule

    def _value(self, schema: Any) -> str | None:
        if isinstance(schema, Mapping) and set(schema) - ANNOTATIONS == {"$ref"}:
            return self._of_ref(schema["$ref"])
        if isinstance(schema, bool) or not self._is_long(schema, set()):
            return self._leaf(schema)
        options = [self._plain(way) for way in ways(schema, self._referred)]
        if not options:
            self._empty.append(f"{_choice_keyword(schema)}: no value fits all of its parts")
        return self._either(options)

    def _optional(self, schema: Any) -> str | None:
        """As `value`, where a schema without values is no fault."""
        n_empty = len(self._empty)
        rule = self.value(schema)
        del self._empty[n_empty:]
        return rule

    def _of_ref(self, ref: str) -> str | None:
        if ref not in self._of_refs:
            target = self._referred(ref)
            self._of_refs[ref] = name = self._new_name()
            rule = self.value(target)
            if rule is None:
                self._of_refs[ref] = None
                self._lines.append(f'{name}: "0"')  # rules that are left out alone lead here
            else:
                self._lines.append(f"{name}: {rule}")
        return self._of_refs[ref]

    def _plain(self, plain: Plain) -> str | None:
        """Returns the rule of a plain schema."""
        if "enum" in plain:
            return self._values(plain)
        rules: list[str | None] = []
        rest: list[str] = []
        if not (types := types_of(plain)):
            self._empty.append("type: no type is in all of its lists")
        for kind in types:
            part = {key: plain[key] for key in KEYWORDS[kind] if key in plain}
            if kind in ("integer", "number") and (self._are_all_exact or needs_exact_numbers(part)):
                rules.append(self._number(part, kind == "integer"))
            elif kind == "object" and self._is_long(part, set()):
                rules.append(self._object(part))
            elif kind == "array" and self._is_long(part, set()):
                rules.append(self._array(part))
            else:
                rest.append(kind)
        if rest:
            kept = {key for kind in rest for key in KEYWORDS[kind]}
            part = {key: value for key, value in plain.items() if key in kept}
            rules.append(self._leaf({"type": rest, **part}))
        return self._either(rules)

    def _number(self, part: Plain, is_integer: bool) -> str | None:
        bounds = _bounds(part)
        step = exact(part["multipleOf"]) if "multipleOf" in part else None
        if step is not None and is_integer:
            step = Fraction(step.numerator)  # the integers among its multiples
        if step is None or (step == 1 and is_integer):
            pattern = (number_patterns.integers if is_integer else number_patterns.decimals)(bounds)
        elif not _is_long_step(part["multipleOf"]) and (
            near := _near(bounds, step)
        ):  # fmt: skip
            kind = "integer" if is_integer else "number"
            return self._leaf({"type": kind, "multipleOf": part["multipleOf"], **near})
        else:
            pattern = number_patterns.listed(number_patterns.multiples(bounds, step))
        if not pattern:
            bounds_text = ", ".join(f"{key} {_shown(part[key])}" for key in sorted(part))
            kind = "integer" if is_integer else "number"
            self._empty.append(f"{bounds_text}: no {kind} fits")
        return self._rule(f"/{pattern}/") if pattern else None

    def _values(self, plain: Plain) -> str | None:
        """Returns the rule of the values of ``enum`` that the other keywords allow."""
        types, rest = types_of(plain), set(plain) - {"enum", "type"}
        soft, rules = [], list[str | None]()
        for value in plain["enum"]:
            kind = _type_of(value)
            if not (kind in types or (kind == "integer" and "number" in types)):
                continue
            relevant = rest.intersection(KEYWORDS[kind])
            if kind in ("integer", "number"):
                if _admits({key: plain[key] for key in relevant}, exact(value)):
                    rules.append(self._rule(_literal(value)))
            elif not _holds_long(value):
                soft.append(value)
            elif relevant:
                raise refuse(sorted(relevant)[0])
            else:
                rules.append(self._rule(_literal(value)))
        if soft:
            kept = {key: plain[key] for key in rest if key not in KEYWORDS["number"]}
            if self._is_long(kept, set()):
                raise refuse("enum")
            rules.append(self._leaf({"type": plain.get("type", [*KEYWORDS]), **kept, "enum": soft}))
        if not any(rules):
            self._empty.append("enum: none of its values fits the other keywords")
        return self._either(rules)

    def _object(self, part: Plain) -> str | None:
        if count := {"minProperties", "maxProperties"}.intersection(part):
            raise refuse(sorted(count)[0])
        required, pairs = part.get("required", ()), list[tuple[str, bool]]()
        schemas = property_schemas(part)
        for name, schema in schemas.items():
            rule = (self.value if name in required else self._optional)(schema)
            if rule is not None:
                key = _text(json.dumps(name, ensure_ascii=False))
                pairs.append((f'{key} ":" {rule}', name in required))
            elif name in required:
                return None
        others = None
        if "patternProperties" not in part:
            others = self._optional(part.get("additionalProperties", True))
        key = self._rule(_key_beside(schemas), is_token=True)
        more = None if others is None else self._rule(f'{key} ":" {others}')
        return self._rule('"{" ' + self._pairs(pairs, more) + ' "}"')

    def _pairs(self, pairs: Sequence[tuple[str, bool]], more: str | None) -> str:
        """Returns what is between braces: pairs in order, commas only between them."""
        behind = f'("," {more})*' if more else ""
        first = f'({more} ("," {more})*)?' if more else ""
        for pair, is_required in reversed(pairs):
            goes_on = self._rule(behind) if behind else ""
            if is_required:
                first, behind = f"{pair} {goes_on}", f'"," {pair} {goes_on}'
            else:
                instead = self._rule(first) if first else '""'
                first = f"({pair} {goes_on} | {instead})"
                behind = f'("," {pair})? {goes_on}'
        return first

    def _array(self, part: Plain) -> str | None:
        n_empty, least, most = len(self._empty), part.get("minItems", 0), part.get("maxItems")
        firsts: list[str] = []
        for schema in part.get("prefixItems", ())[:most]:
            if (rule := self.value(schema)) is None:
                most = len(firsts)
                break
            firsts.append(rule)
        rest = self.value(part.get("items", True))
        if rest is None:
            most = len(firsts) if most is None else min(most, len(firsts))
        if most is not None and least > most:
            self._empty.append(f"minItems {least}: no more than {most} items fit")
            return None
        del self._empty[n_empty:]
        n = len(firsts)
        if n == 0 and rest is not None and most != 0:
            inner = f"{rest} " + _times(f'"," {rest}', max(least - 1, 0), most and most - 1)
            inner = inner if least else f"({inner})?"
        else:
            inner = "" if rest is None else _times(
                f'"," {rest}', max(least - n, 0), None if most is None else most - n
            )  # fmt: skip
            for i in range(n - 1, -1, -1):
                inner = f"{_COMMA if i else ''} {firsts[i]} {inner}"
                inner = inner if i < least else f"({inner})?"
        return self._rule(f'"[" {inner} "]"')

    def _leaf(self, schema: Any) -> str | None:
        """Returns the rule of a schema that the library follows by itself."""
        if schema is False:
            self._empty.append("false: no value fits it")
            return None
        document: dict[str, Any] = {} if schema is True else dict(schema)
        if '"$ref"' in write_schema(document):
            kept = {key: _moved(value) for key, value in document.items() if key not in ("$defs",)}
            document = {**kept, "$defs": {"root": _moved(self._root)}}
        if isinstance(self._root, Mapping) and "$schema" in self._root:
            document["$schema"] = self._root["$schema"]
        text = write_schema({**document, "x-guidance": dict(self._options)})
        if reason := self._check(json.loads(text)):
            if not is_unsatisfiable(reason):
                raise UnsupportedKeywordError(reason)
            self._empty.append(reason)
            return None
        return self._rule("%json " + text)

    def _is_long(self, schema: Any, seen: set[str]) -> bool:
        """Whether a schema, or what it refers to, needs exact numbers."""
        if self._are_all_exact or needs_exact_numbers(schema):
            return True
        for ref in _refs(schema):
            if ref not in seen:
                seen.add(ref)
                if self._is_long(self._referred(ref), seen):
                    return True
        return False

    def _referred(self, ref: str) -> Any:
        return referred(self._root, ref)

    def _either(self, rules: Sequence[str | None]) -> str | None:
        known = [rule for rule in rules if rule is not None]
        if not known:
            return None
        return known[0] if len(known) == 1 else self._rule(" | ".join(known))

    def _new_name(self, is_token: bool = False) -> str:
        self._n_rules += 1
        return f"{'T' if is_token else 'r'}{self._n_rules}"

    def _rule(self, body: str, is_token: bool = False) -> str:
        name = self._new_name(is_token)
        self._lines.append(f"{name}: {body}")
        return name


def is_unsatisfiable(reason: str) -> bool:
    """Whether the library refuses a schema because no value fits it."""
    return "Unsatisfiable schema" in reason


def _choice_keyword(schema: Mapping[str, Any]) -> str:
    return next((key for key in ("allOf", "anyOf", "oneOf", "$ref") if key in schema), "enum")


def _shown(number: Any) -> str:
    """Returns a number as a person reads it: the digits of a long one are cut."""
    text = str(number)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def _bounds(part: Plain) -> Bounds:
    low, is_low_open = _tighter(part, "minimum", "exclusiveMinimum", 1)
    high, is_high_open = _tighter(part, "maximum", "exclusiveMaximum", -1)
    return Bounds(low, high, is_low_open, is_high_open)


def _tighter(part: Plain, closed: str, opened: str, sign: int) -> tuple[Fraction | None, bool]:
    """Returns the tighter of two bounds, and whether it is itself left out."""
    bounds = [(sign * exact(part[key]), key == opened) for key in (closed, opened) if key in part]
    if not bounds:
        return None, False
    bound, is_open = max(bounds)
    return sign * bound, is_open


def _near(bounds: Bounds, step: Fraction) -> dict[str, int] | None:
    """Returns bounds that floats hold and that have a multiple of ``step`` between them, if any."""
    most = _MAX_EXACT - 1
    low = -most if bounds.first is None else max(-most, bounds.first)
    high = most if bounds.last is None else min(most, bounds.last)
    between = Bounds(Fraction(low), Fraction(high))
    if low <= high and next(number_patterns.multiples(between, step), None) is not None:
        return {"minimum": low, "maximum": high}
    return None


def _admits(part: Plain, value: Fraction) -> bool:
    step = exact(part["multipleOf"]) if "multipleOf" in part else None
    return _bounds(part).holds(value) and (step is None or (value / step).denominator == 1)


def _times(body: str, least: int, most: int | None) -> str:
    if most == 0:
        return ""
    return f"({body}){{{least},{'' if most is None else most}}}"


def _literal(value: Any) -> str:
    """Returns a value's JSON as Lark writes it, with white space between its tokens."""
    if isinstance(value, list):
        return '"[" ' + _COMMA.join(map(_literal, value)) + ' "]"'
    if isinstance(value, Mapping):
        pairs = [f'{_literal(key)} ":" {_literal(item)}' for key, item in value.items()]
        return '"{" ' + _COMMA.join(pairs) + ' "}"'
    if _type_of(value) in ("integer", "number"):
        return f'"{number_patterns.decimal_text(exact(value))}"'
    return _text(json.dumps(value, ensure_ascii=False))


def _text(text: str) -> str:
    """Returns a text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def _key_beside(names: Mapping[str, Any]) -> str:
    """Returns the expression of a name that is none of ``names``."""
    any_name = f'/"({_LETTER})*"/'
    if not names:
        return any_name
    others = "|".join(_escaped(json.dumps(name, ensure_ascii=False)) for name in names)
    return f"{any_name} & ~/{others}/"


def _escaped(text: str) -> str:
    return re.sub(r"[^\w]", lambda match: f"\\x{{{ord(match[0]):x}}}", text)


def _moved(schema: Any) -> Any:
    """Returns a schema whose references lead into a copy of its document, at ``#/$defs/root``."""
    if isinstance(schema, list):
        return [_moved(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {key: _moved(part) for key, part in schema.items() if key not in ("$id", "$schema")}
    if isinstance(ref := made.get("$ref"), str) and ref.startswith("#"):
        made["$ref"] = "#/$defs/root" + ref[1:]
    return made


def _refs(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [ref for part in schema for ref in _refs(part)]
    if not isinstance(schema, Mapping):
        return []
    refs = [schema["$ref"]] if isinstance(schema.get("$ref"), str) else []
    inner = [part for key, part in schema.items() if key not in ("$defs", "definitions")]
    return [*refs, *(ref for part in inner for ref in _refs(part))]


def _holds_long(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_holds_long, value))
    if isinstance(value, Mapping):
        return any(map(_holds_long, value.values()))
    return _is_long(value)


def _is_long(value: Any) -> bool:
    """Whether a number is more than a float that the library writes out as it is."""
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return abs(value) > _MAX_EXACT
    if isinstance(value, float):
        _, digits, exponent = Decimal(repr(value)).as_tuple()
        n_digits, n_places = len(digits), -int(exponent)
        return n_digits - n_places > _MAX_FLOAT_DIGITS or n_places > _MAX_FLOAT_DIGITS
    return isinstance(value, Decimal | Fraction)


def _is_long_step(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | Fraction):
        return False
    too_many = exact(value) >= _MAX_COEFFICIENT
    return _is_long(value) or too_many or _without_zeros(value) > _MAX_STEP


def _without_zeros(step: int | float | Decimal | Fraction) -> int:
    """Returns the digits of a step as a number, without the point and the zeros at the end."""
    digits = number_patterns.decimal_text(abs(exact(step))).replace(".", "").strip("0")
    return int(digits or "1")


def check_steps(schema: Any) -> None:
    """Raises an UnsupportedKeywordError if steps that may meet take the library too long."""
    if math.lcm(*map(_without_zeros, _steps(schema))) > _MAX_STEPS:
        raise UnsupportedKeywordError("multipleOf: the numbers of the schema have a large multiple")


def _steps(schema: Any) -> Iterator[int | float]:
    """Yields all steps."""
    if isinstance(schema, list):
        for part in schema:
            yield from _steps(part)
    elif isinstance(schema, Mapping):
        step = schema.get("multipleOf")
        if isinstance(step, int | float) and not isinstance(step, bool):
            yield step
        for part in schema.values():
            yield from _steps(part)


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float | Decimal | Fraction):
        return "integer" if exact(value).denominator == 1 else "number"
    names: dict[type, str] = {str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


_LONG: Mapping[str, Callable[[Any], bool]] = {
    "const": _holds_long,
    "enum": _holds_long,
    "multipleOf": _is_long_step,
    **dict.fromkeys(_NUMBER_KEYS, _is_long),
}
"""By keyword: whether its value is, or holds, a number that a float would change."""
