"""Ends an answer behind one of its lines, where a client asks for that."""

from __future__ import annotations

import time
from collections.abc import Callable

from edgedec.apps.serve.core import LineLimits


class LineWatch:
    """Sees where the limits of lines end a text. is_over: they did.

    Source: llama.cpp's server, `t_max_predict_ms` and `n_indent`.
    """

    def __init__(self, limits: LineLimits, now_s: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._now_s = now_s
        self._begun_s: float | None = None
        self._n_lines = 0  # complete ones
        self._indent: int | None = None  # of the line so far; None within its text
        self.is_over = False

    def push(self, text: str) -> str:
        """Returns how much of the next piece of text is still part of the answer."""
        if self._begun_s is None:
            self._begun_s = self._now_s()
        for i, character in enumerate(text):
            if self._ends_before(character):
                self.is_over = True
                return text[:i]
        most_ms = self._limits.predict_ms
        if most_ms > 0 and self._n_lines and 1000 * (self._now_s() - self._begun_s) > most_ms:
            self.is_over = True
        return text

    def _ends_before(self, character: str) -> bool:
        """Whether the line that goes on with ``character`` has too little indentation."""
        if self._indent is not None and character in " \t":
            self._indent += 1
            return False
        if self._indent is not None and self._indent < self._limits.n_indent:
            return True
        self._indent = 0 if character == "\n" else None
        self._n_lines += character == "\n"
        return False
