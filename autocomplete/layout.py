"""Where the model's window on a document begins, and the prompt it becomes.

A prompt that begins as the one before costs its new tokens only. So the window begins where it
began, at a line that stays the same while its end moves along with the cursor; it jumps on when the
text has outgrown it, by a quarter at once. What is behind the cursor, which keys leave as it is,
comes before; and first of all excerpts of other documents, which stay until the window jumps or,
where they no longer stand there, until somebody turns to this document again.

A half word before the cursor is no part of the prompt: its tokens are not those that the word is
made of, and models that read them go on badly. It is what the answer has to begin with instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from edgedec.autocomplete.config import AutocompleteConfig
from edgedec.autocomplete.document import Document, Excerpt, Window
from edgedec.autocomplete.others import OtherDocuments
from edgedec.autocomplete.pieces import PieceEncoder
from edgedec.models.errors import LARGER_CONTEXT, ConfigError
from edgedec.runtime.config.checks import check_type
from edgedec.runtime.engine.engine import Engine
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

_NEAR = 2048
"""Characters before the cursor, and half as many behind it, to which other documents are likened.
"""


@dataclass(frozen=True)
class _Anchor:
    """Where the window on a document began, in characters of all of it, with what text.

    others: excerpts that are read before it.
    """

    start: int
    text: str
    others: tuple[Excerpt, ...]


class PromptLayout:
    """Makes prompts of documents. Models that cannot fill in read what is before the cursor."""

    def __init__(self, engine: Engine, config: AutocompleteConfig) -> None:
        check_type("engine", engine, Engine, "an Engine, which edgedec.load returns")
        check_type("config", config, AutocompleteConfig, "an AutocompleteConfig or None")
        if engine.encoder.has_source:
            raise ConfigError(
                "an encoder reads this model's texts, so it cannot go on where the cursor is: "
                "choose a model without an encoder"
            )
        self._engine = engine
        codec = engine.tokenizer
        self._pieces = PieceEncoder(codec)
        self._encode = self._pieces.encode
        self._start_tokens = engine.encoder.opening
        self._n_after = config.n_after
        room = engine.context - config.n_after - config.max_new_tokens - _N_MARKS
        room -= len(self._start_tokens)
        self._n_before = min(config.n_before, room)
        if self._n_before < 1:
            raise ConfigError(
                f"n_after and max_new_tokens of autocomplete take {config.n_after} and "
                f"{config.max_new_tokens} tokens of a context of {engine.context}, expected that "
                "some are left for the text before the cursor: ask for fewer, or use "
                f"{LARGER_CONTEXT}"
            )
        self._n_others = min(config.n_others, room - self._n_before)
        self._anchors: dict[str, _Anchor] = {}
        self._latest = ""  # name of the document that was written in last
        self.others = OtherDocuments()
        self.infill: InfillTokens | None = find_infill_tokens(codec)

    def check(self) -> None:
        """Raises: SessionError: The engine is closed."""
        self._engine.streams.check_open()

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
        known = self._anchors.get(document.name)
        start = self._start(document, known)
        is_kept = known is not None and start is not None
        start = self._earliest(document) if start is None else start
        before = document.text[start : document.cursor]
        if len(self._encode(before)) > self._n_before:
            start, is_kept = self._later(document, start), False
            before = document.text[start : document.cursor]
        others = known.others if is_kept and known is not None else None
        others = self._others_of(document, others)
        start += document.offset
        self._anchors[document.name] = _Anchor(start, before[:_ANCHOR], others)
        return Window(document.name, start, before, self._after(document), others)

    def split(self, window: Window) -> tuple[Window, str]:
        """Returns ``window`` without the half word before the cursor, and that."""
        match = _HALF_WORD.search(window.before) if self._pieces.keeps_spaces else None
        half = match.group() if match and match.start() else ""
        whole = window.before.removesuffix(half)
        return replace(window, before=whole), half

    def prompt(self, window: Window) -> list[int]:
        """Returns the tokens of a window; none where there is nothing to read."""
        before = self._encode(window.before)
        others = [token for other in window.others for token in self._read(other)]
        if self.infill is None:
            return [*self._start_tokens, *others, *before] if before else []
        after = self._encode(window.after)[: self._n_after]
        if not (before or after):
            return []
        head = self._read(Excerpt(window.name, "")) if others else []
        infill = self.infill.typing_prompt(before, after)
        return [*self._start_tokens, *others, *head, *infill]

    def forget(self, name: str) -> None:
        """Forgets a document that was closed."""
        check_type("name of a document", name, str, "text")
        self._anchors.pop(name, None)
        self.others.forget(name)

    def _others_of(
        self, document: Document, kept: tuple[Excerpt, ...] | None
    ) -> tuple[Excerpt, ...]:
        """Returns what is read of other documents: what was, unless that has become another text.

        kept: what was read so far; None: the window has moved, so that all is read anew anyway.
        """
        is_turned, self._latest = document.name != self._latest, document.name
        if self._n_others == 0:
            return ()
        self.others.see(document)
        if kept and not (is_turned and not self.others.has(kept)):
            return kept
        at, text = document.cursor, document.text
        near = text[max(0, at - _NEAR) : at + _NEAR // 2]
        n_own = len(self._read(Excerpt(document.name, "")))
        return self.others.choose(
            document.name, near, self._n_others - n_own, lambda other: len(self._read(other))
        )

    def _read(self, excerpt: Excerpt) -> list[int]:
        """Returns the tokens of an excerpt; with the name of its document for models of code."""
        if self.infill is None or self.infill.file is None:
            return self._encode(excerpt.text + "\n")
        return [self.infill.file, *self._encode(f"{excerpt.title}\n{excerpt.text}")]

    def _earliest(self, document: Document) -> int:
        return _next_line(document, max(0, document.cursor - self._n_before * _CHARACTERS))

    def _start(self, document: Document, known: _Anchor | None) -> int | None:
        """Returns where the window begins that began at ``known``; None if that is gone."""
        if known is None:
            return None
        earliest = max(0, document.cursor - self._n_before * _CHARACTERS)
        start = known.start - document.offset
        if earliest <= start <= document.cursor and document.text.startswith(known.text, start):
            return start
        at = document.text.rfind(known.text, earliest, document.cursor) if known.text else -1
        return at if at >= 0 else None

    def _later(self, document: Document, start: int) -> int:
        """Returns a beginning that leaves three quarters of the tokens."""
        kept = 3 * self._n_before // 4
        tokens = self._encode(document.text[start : document.cursor])
        n_characters = len(self._engine.tokenizer.decode(tokens[-kept:]))
        return _next_line(document, max(start, document.cursor - n_characters))

    def _after(self, document: Document) -> str:
        n_characters = self._n_after * _CHARACTERS
        return document.text[document.cursor : document.cursor + n_characters]


def _next_line(document: Document, start: int) -> int:
    """Returns the beginning of the first line at or behind ``start``; ``start`` if none is left."""
    if start == 0:
        return 0
    end = document.text.find("\n", start - 1, document.cursor)
    return start if end < 0 else end + 1
