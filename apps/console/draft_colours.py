"""Colours that tell where the tokens of a text come from."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence

from edgedec.runtime.decoding.strategy import TARGET

_PALETTE = ("green", "cyan", "magenta", "yellow", "blue", "red")


class OriginColours:
    """Gives each drafter a colour, in the order they appear. The target model's tokens have none.

    Nothing is coloured unless standard output is a terminal, nor where ``NO_COLOR`` is set.
    """

    def __init__(self) -> None:
        self._is_on = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._names: list[str] = []

    def paint(self, text: str, origin: str) -> str:
        """Returns ``text``, between the signs that colour it as a token of ``origin``."""
        style = self._style(origin)
        if not self._is_on or not style:
            return text
        from rich.color import ColorSystem
        from rich.style import Style

        return Style.parse(style).render(text, color_system=ColorSystem.STANDARD)

    def print_legend(self, origins: Sequence[str]) -> None:
        """Says on standard error how many of the tokens come from where."""
        from rich.text import Text

        from edgedec.apps.console.consoles import err

        text = Text("tokens by origin: ")
        for i, (origin, n_tokens) in enumerate(Counter(origins).most_common()):
            text.append(" · " if i else "")
            text.append(f"{origin} {n_tokens}", style=self._style(origin))
        err.print(text, soft_wrap=True)

    def _style(self, origin: str) -> str:
        if origin == TARGET:
            return ""
        if origin not in self._names:
            self._names.append(origin)
        return _PALETTE[self._names.index(origin) % len(_PALETTE)]
