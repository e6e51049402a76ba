"""What an answer says: calls of tools, and the text around them, piece by piece."""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Iterator, Sequence

from edgedec.apps.serve.core import CallDelta, Event, TextDelta, TokenInfo
from edgedec.apps.serve.tools import BEGIN, END
from edgedec.runtime.text.thoughts import overlap

_HEAD = re.compile(r'\s*\{\s*"name":\s*"((?:[^"\\]|\\.)*)",\s*"arguments":\s*(?=\{)')


class OutputParser:
    """Cuts one answer into events. What may begin a mark is held back until it is known.

    Tokens go with the text that shows them; those of calls are left out.
    """

    def __init__(self, index: int, has_calls: bool = False) -> None:
        """has_calls: calls are looked for."""
        self._index = index
        self._has_calls = has_calls
        self._state = "text"
        self._held = ""
        self._tokens: deque[TokenInfo] = deque()
        self._n_passed = 0  # characters before those held, of the first token among them
        self._shown: list[TokenInfo] = []
        self._origin = ""
        self._arguments = _Braces()
        self.n_calls = 0

    def push(self, text: str, tokens: Sequence[TokenInfo], origin: str = "") -> Iterator[Event]:
        """Yields what more text says. tokens: of the text, in order. origin: of the text."""
        self._held += text
        self._tokens += tokens
        self._origin = origin
        if not self._has_calls:  # most of the time
            yield from self._text(len(self._held))
            return
        yield from self._events(is_last=False)

    def flush(self) -> Iterator[Event]:
        """Yields what was held back, once there is no more text."""
        yield from self._events(is_last=True)
        if self._state == "text" and self._tokens:
            yield TextDelta(self._index, "", list(self._tokens), self._origin)
            self._tokens.clear()

    def _events(self, is_last: bool) -> Iterator[Event]:
        before = None
        while before != (self._state, self._held):
            before = self._state, self._held
            yield from getattr(self, f"_in_{self._state}")(is_last)

    def _in_text(self, is_last: bool) -> Iterator[Event]:
        if not self._has_calls:
            yield from self._text(len(self._held))
            return
        if self.n_calls:  # only what separates calls stands behind one
            self._take(len(self._held) - len(self._held.lstrip()))
        n, found = self._place_of(BEGIN, is_last)
        yield from self._text(n)
        if found >= 0:
            self._take(len(BEGIN))
            self._state = "call"

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
            rest = self._held[found + len(END) :]
            self._take(found + len(END) + len(rest) - len(rest.lstrip()))
            self._state = "text"

    def _place_of(self, mark: str, is_last: bool) -> tuple[int, int]:
        """Returns how many characters are certain to be before ``mark``, and where it is, or -1."""
        found = self._held.find(mark)
        n_held = 0 if is_last else overlap(self._held, mark)
        return (found if found >= 0 else len(self._held) - n_held), found

    def _take(self, n: int, is_shown: bool = False) -> str:
        """Takes characters, and the tokens whose text they end."""
        taken, self._held = self._held[:n], self._held[n:]
        self._n_passed += n
        while self._tokens and self._n_passed >= self._tokens[0].n_characters:
            token = self._tokens.popleft()
            self._n_passed -= token.n_characters
            if is_shown:
                self._shown.append(token)
        return taken

    def _text(self, n: int) -> Iterator[Event]:
        text = self._take(n, is_shown=True)
        if text or self._shown:
            tokens, self._shown = self._shown, []
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
