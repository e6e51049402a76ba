"""A griffe extension: fields that a docstring describes as ``name: text`` become a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

_TOGETHER = re.compile(r"^( +)([a-z_]\w*(?:, [a-z_]\w*)+): (?=\S)", re.MULTILINE)
_FIELD = re.compile(r"^([a-z_]\w*(?:, [a-z_]\w*)*): (?=\S)")


class FieldLists(griffe.Extension):
    """Turns paragraphs of fields into bullets, so that a page does not run them together."""

    def on_instance(self, *, obj: Any, **kwargs: Any) -> None:
        """Rewrites the docstring of whatever has one."""
        if obj.docstring is not None:
            parts = apart(obj.docstring.value).split("\n\n")
            obj.docstring.value = "\n\n".join(map(listed, parts))


def apart(docstring: str) -> str:
    """Returns a docstring whose parameters that are described together have a line each."""

    def split(match: re.Match[str]) -> str:
        *others, last = match[2].split(", ")
        lines = [f"{match[1]}{name}: See `{last}`." for name in others]
        return "\n".join([*lines, f"{match[1]}{last}: "])

    return _TOGETHER.sub(split, docstring)


def listed(paragraph: str) -> str:
    """Returns a paragraph with its fields as bullets; any other paragraph as it is."""
    lines = paragraph.split("\n")
    if not _FIELD.match(lines[0]):
        return paragraph
    return "\n".join(_FIELD.sub(r"- **\1**: ", line) for line in lines)
