"""Marks in an answer that are none of the text's, taken out while the answer is written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping


class MarkReader:
    """Parts an answer into its text and the lines at which its marks point."""

    def __init__(self, marks: Mapping[str, int | None]) -> None:
        self._marks = marks
        longest_first = sorted(marks, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if marks else None
        self._held = ""

    def read(self, text: str) -> Iterator[str | int]:
        """Yields what is known by now of the text, and the lines of numbered marks."""
        if self._pattern is None:
            yield text
            return
        text = self._held + text
        at = 0
        for match in self._pattern.finditer(text):
            yield text[at : match.start()]
            if (line := self._marks[match[0]]) is not None:
                yield line
            at = match.end()
        rest = text[at:]
        n_held = self._n_begun(rest)
        self._held = rest[len(rest) - n_held :]
        yield rest[: len(rest) - n_held]

    def finish(self) -> str:
        """Returns what was held back because a mark begins with it."""
        held, self._held = self._held, ""
        return held

    def _n_begun(self, text: str) -> int:
        """Returns how many characters at the end of a text may begin a mark."""
        longest = min(len(text), max(map(len, self._marks)) - 1)
        return next(
            (n for n in range(longest, 0, -1) if any(m.startswith(text[-n:]) for m in self._marks)),
            0,
        )
