"""What the text of a model says: thoughts, calls of tools, and what is left, piece by piece."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

from edgedec.apps.serve.core import CallDelta, Event, ReasoningDelta, TextDelta, TokenInfo
from edgedec.apps.serve.tools import BEGIN, END

THINK, THOUGHT = "<think>", "</think>"

_HEAD = re.compile(r'\s*\{\s*"name":\s*"((?:[^"\\]|\\.)*)",\s*"arguments":\s*(?=\{)')


class OutputParser:
    """Cuts one answer into events. What may begin a mark is held back until it is known."""

    def __init__(
        self, index: int, has_calls: bool = False, is_thinking: bool | None = None
    ) -> None:
        """has_calls: calls are looked for. is_thinking: thoughts come first; None: they may."""
        self._index = index
        self._has_calls = has_calls
        self._state = {None: "start", True: "thought", False: "text"}[is_thinking]
        self._held = ""
        self._is_fresh = False  # a mark came just before: line breaks behind it mean nothing
        self._tokens: list[TokenInfo] = []
        self._origin = ""
        self._arguments = _Braces()
        self.n_calls = 0

    def push(self, text: str, tokens: list[TokenInfo], origin: str = "") -> Iterator[Event]:
        """Yields what more text says. origin: of the text."""
        self._held += text
        self._tokens += tokens
        self._origin = origin
        if self._state == "text" and not (self._has_calls or self._is_fresh):  # most of the time
            yield from self._text(self._take(len(self._held)))
            return
        yield from self._events(is_last=False)

    def flush(self) -> Iterator[Event]:
        """Yields what was held back, once there is no more text."""
        yield from self._events(is_last=True)
        if self._tokens:
            yield from self._text("")

    def _events(self, is_last: bool) -> Iterator[Event]:
        before = None
        while before != (self._state, self._held):
            before = self._state, self._held
            if self._is_fresh:
                self._held = self._held.lstrip("\n")
                self._is_fresh = not self._held
            yield from getattr(self, f"_in_{self._state}")(is_last)

    def _in_start(self, is_last: bool) -> Iterator[Event]:
        """Sees whether a thought comes first."""
        yield from ()
        head = self._held.lstrip()
        if head.startswith(THINK):
            self._held = head.removeprefix(THINK)
            self._state, self._is_fresh = "thought", True
        elif is_last or not THINK.startswith(head):
            self._state = "text"

    def _in_text(self, is_last: bool) -> Iterator[Event]:
        if not self._has_calls:
            yield from self._text(self._take(len(self._held)))
            return
        if self.n_calls:
            self._held = self._held.lstrip()  # only what separates calls stands behind one
        n, found = self._place_of(BEGIN, is_last)
        yield from self._text(self._take(n))
        if found >= 0:
            self._take(len(BEGIN))
            self._state = "call"

    def _in_thought(self, is_last: bool) -> Iterator[Event]:
        n, found = self._place_of(THOUGHT, is_last)
        if text := self._take(n):
            yield ReasoningDelta(self._index, text)
        if found >= 0:
            self._take(len(THOUGHT))
            self._state, self._is_fresh = "text", True

    def _in_call(self, is_last: bool) -> Iterator[Event]:
        if head := _HEAD.match(self._held):
            self._take(head.end())
            self._arguments, self._state = _Braces(), "arguments"
            name = re.sub(r"\\(.)", r"\1", head[1])
            call_id = f"call_{secrets.token_hex(12)}"
            yield CallDelta(self._index, self.n_calls, "", call_id, name)
            self.n_calls += 1

    def _in_arguments(self, is_last: bool) -> Iterator[Event]:
        n = self._arguments.count(self._held)
        if text := self._take(n):
            yield CallDelta(self._index, self.n_calls - 1, text)
        if self._arguments.is_over:
            self._state = "end"

    def _in_end(self, is_last: bool) -> Iterator[Event]:
        yield from ()
        found = self._held.find(END)
        if found >= 0:
            self._held = self._held[found + len(END) :].lstrip()
            self._state = "text"

    def _place_of(self, mark: str, is_last: bool) -> tuple[int, int]:
        """Returns how many characters are certain to be before ``mark``, and where it is, or -1."""
        found = self._held.find(mark)
        n_held = 0 if is_last else overlap(self._held, mark)
        return (found if found >= 0 else len(self._held) - n_held), found

    def _take(self, n: int) -> str:
        taken, self._held = self._held[:n], self._held[n:]
        return taken

    def _text(self, text: str) -> Iterator[Event]:
        if text or (self._tokens and not self._held):
            tokens, self._tokens = self._tokens, []
            yield TextDelta(self._index, text, tokens, self._origin)


class _Braces:
    """Finds the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_text = self._is_escaped = False
        self.is_over = False

    def count(self, text: str) -> int:
        """Returns how many characters of ``text`` belong to the object."""
        for i, character in enumerate(text):
            if self._is_escaped:
                self._is_escaped = False
            elif self._is_text:
                self._is_escaped = character == "\\"
                self._is_text = character != '"'
            elif character == '"':
                self._is_text = True
            else:
                self._depth += (character in "{[") - (character in "}]")
                if self._depth == 0 and character in "}]":
                    self.is_over = True
                    return i + 1
        return len(text)


def overlap(text: str, mark: str) -> int:
    """Returns the length of the longest end of ``text`` that begins ``mark``."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
