"""Where the model's window on a document begins, and the prompt it becomes.

A prompt that begins as the one before costs its new tokens only. So the window begins where it
began, at a line that stays the same while its end moves along with the cursor; it jumps on when the
text has outgrown it, by a quarter at once. What is behind the cursor, which keys leave as it is,
comes first.

A half word before the cursor is no part of the prompt: its tokens are not those that the word is
made of, and models that read them go on badly. It is what the answer has to begin with instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from edgedec.autocomplete.config import AutocompleteConfig
from edgedec.autocomplete.document import Document, Window
from edgedec.models.errors import ConfigError
from edgedec.runtime.engine import Engine
from edgedec.runtime.text.infill import InfillTokens, find_infill_tokens

_CHARACTERS = 8
"""Of one token, at most, that are looked at; texts with longer tokens get a shorter window."""

_N_MARKS = 4
"""Tokens of a prompt that are no text."""

_HALF_WORD = re.compile(r"[^\S\n]?\w{0,24}\Z")
"""At the end of a text, with the space that the word's first token has; never many tokens, in
writing without spaces either."""

_ANCHOR = 120
"""Characters by which the beginning of a window is found again."""


@dataclass(frozen=True)
class _Anchor:
    """Where the window on a document began, in characters of all of it, and with what."""

    start: int
    text: str


class PromptLayout:
    """Makes prompts of documents. Models that cannot fill in read what is before the cursor."""

    def __init__(self, engine: Engine, config: AutocompleteConfig) -> None:
        self._engine = engine
        self._n_after = config.n_after
        room = engine.context - config.n_after - config.max_new_tokens - _N_MARKS
        self._n_before = min(config.n_before, room)
        if self._n_before < 1:
            raise ConfigError(
                f"n_after and max_new_tokens of autocomplete take {config.n_after} and "
                f"{config.max_new_tokens} tokens of a context of {engine.context}, expected that "
                "some are left for the text before the cursor: ask for fewer, or load with a "
                "larger context"
            )
        self._anchors: dict[str, _Anchor] = {}
        self.infill: InfillTokens | None = find_infill_tokens(engine.tokenizer)
        codec = engine.tokenizer  # of some, the first token of a text loses its space
        self._keeps_spaces = codec.decode(codec.encode(" a")) == " a"

    def check(self) -> None:
        """Raises: SessionError: The engine is closed."""
        assert self._engine.context > 0

    @property
    def reach(self) -> int:
        """Characters on either side of the cursor beyond which nothing matters."""
        return max(self._n_before, self._n_after) * _CHARACTERS

    @property
    def stops(self) -> tuple[int, ...]:
        """Tokens with which the model says that nothing is missing any more."""
        return () if self.infill is None else self.infill.stops

    def window(self, document: Document) -> Window:
        """Returns what the model reads of ``document``; remembers where that begins."""
        start = self._start(document)
        before = document.text[start : document.cursor]
        if len(self._encode(before)) > self._n_before:
            start = self._later(document, start)
            before = document.text[start : document.cursor]
        start += document.offset
        self._anchors[document.name] = _Anchor(start, before[:_ANCHOR])
        return Window(document.name, start, before, self._after(document))

    def split(self, window: Window) -> tuple[Window, str]:
        """Returns ``window`` without the half word before the cursor, and that."""
        found = _HALF_WORD.search(window.before) if self._keeps_spaces else None
        half = found.group() if found and found.start() else ""
        whole = window.before.removesuffix(half)
        return replace(window, before=whole), half

    def prompt(self, window: Window) -> list[int]:
        """Returns the tokens of a window; none where there is nothing to read."""
        before = self._encode(window.before)
        if self.infill is None:
            return self._engine.encode(window.before) if before else []
        after = self._encode(window.after)[: self._n_after]
        return self.infill.typing_prompt(before, after) if before or after else []

    def forget(self, name: str) -> None:
        """Forgets a document that was closed."""
        self._anchors.pop(name, None)

    def _start(self, document: Document) -> int:
        earliest = max(0, document.cursor - self._n_before * _CHARACTERS)
        known = self._anchors.get(document.name)
        if known is None:
            return _next_line(document, earliest)
        start = known.start - document.offset
        if earliest <= start <= document.cursor and document.text.startswith(known.text, start):
            return start
        found = document.text.rfind(known.text, earliest, document.cursor) if known.text else -1
        return found if found >= 0 else _next_line(document, earliest)

    def _later(self, document: Document, start: int) -> int:
        """Returns a beginning that leaves three quarters of the tokens."""
        kept = 3 * self._n_before // 4
        tokens = self._encode(document.text[start : document.cursor])
        n_characters = len(self._engine.tokenizer.decode(tokens[-kept:]))
        return _next_line(document, max(start, document.cursor - n_characters))

    def _after(self, document: Document) -> str:
        n_characters = self._n_after * _CHARACTERS
        return document.text[document.cursor : document.cursor + n_characters]

    def _encode(self, text: str) -> list[int]:
        return self._engine.tokenizer.encode(text)


def _next_line(document: Document, start: int) -> int:
    """Returns the beginning of the first line at or behind ``start``; ``start`` if none is left."""
    if start == 0:
        return 0
    end = document.text.find("\n", start - 1, document.cursor)
    return start if end < 0 else end + 1
