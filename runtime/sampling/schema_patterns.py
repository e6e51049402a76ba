"""Regular expressions of schemas, in the syntax of the library that follows them.

JSON Schema takes expressions of ECMA-262. In their classes of characters, ``[``, ``&&``, ``--`` and
``~~`` are characters. The library reads classes within classes and operators there.

Source: ECMA-262, 22.2.1 (patterns); rust-lang/regex ``regex-syntax`` (MIT).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_VALUES = ("const", "enum", "default", "examples")
_MAX_DEPTH = 64
_CLASS = re.compile(r"\\.|\[(?P<head>\^?\]?)(?P<body>(?:\\.|[^\]\\])*)\]", re.DOTALL)
_ATOM = re.compile(r"\\(?:u\{[^}]*\}|u.{4}|x..|[pP]\{[^}]*\}|c.|.)|.", re.DOTALL)
_OPERATORS = ("[", "&&", "--", "~~")
_OF_MANY = re.compile(r"\\[dDwWsSpP]")


def with_plain_classes(schema: Any, depth: int = 0) -> Any:
    """Returns ``schema`` with expressions whose classes mean the same to the library."""
    if depth > _MAX_DEPTH:
        return schema
    if isinstance(schema, list):
        return [with_plain_classes(part, depth + 1) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {
        key: value if key in _VALUES else with_plain_classes(value, depth + 1)
        for key, value in schema.items()
    }
    if isinstance(pattern := made.get("pattern"), str):
        made["pattern"] = plain_classes(pattern)
    if isinstance(by_pattern := made.get("patternProperties"), Mapping):
        made["patternProperties"] = {plain_classes(key): part for key, part in by_pattern.items()}
    return made


def plain_classes(pattern: str) -> str:
    """Returns ``pattern`` with the characters escaped that are operators in classes elsewhere."""
    return _CLASS.sub(_plain_class, pattern)


def _plain_class(match: re.Match[str]) -> str:
    body = match["body"]
    if not body or not any(operator in body for operator in _OPERATORS):
        return match[0]
    atoms, parts = _ATOM.findall(body), []
    while atoms:
        is_range = len(atoms) > 2 and atoms[1] == "-"
        if is_range and not (_OF_MANY.match(atoms[0]) or _OF_MANY.match(atoms[2])):
            parts.append(f"{_escaped(atoms[0])}-{_escaped(atoms[2])}")
            del atoms[:3]
        else:
            parts.append(_escaped(atoms.pop(0)))
    return f"[{match['head']}{''.join(parts)}]"


def _escaped(atom: str) -> str:
    return f"\\{atom}" if atom in "[]&~-^" else atom
