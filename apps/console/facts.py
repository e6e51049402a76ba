"""Names and what they stand for, side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from rich.text import Text

from edgedec.apps.console.consoles import out

_GAP = 2
_MIN_WIDTH = 20


def print_facts(facts: Mapping[str, str]) -> None:
    """Prints a line for each name, and more where one is too short.

    No word is broken, so that a path can be copied.
    """
    indent = max(map(len, facts), default=0) + _GAP
    width = max(_MIN_WIDTH, out.width - indent)
    for name, value in facts.items():
        lines = textwrap.wrap(value, width, break_long_words=False, break_on_hyphens=False)
        text = Text(name.ljust(indent) + f"\n{' ' * indent}".join(lines))
        text.stylize("bold", 0, len(name))
        out.print(text, soft_wrap=True)
