"""What an answer says: calls of tools, the text around them, and the line that ends it."""

from __future__ import annotations

import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence

from edgedec.apps.serve.core import CallDelta, Event, LineLimits, TextDelta, TokenInfo
from edgedec.apps.serve.tools import BEGIN, END
from edgedec.runtime.text.thoughts import overlap

_HEAD = re.compile(r'\s*\{\s*"name":\s*"((?:[^"\\]|\\.)*)",\s*"arguments":\s*(?=\{)')

_FENCE = "```"
_UNMARKED = re.compile(
    r'(```(?:json)?\s*)?\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
"""A call as models write it that forget the marks, such as Qwen2.5-Coder and Llama 3."""

_BEGUN = r'\{\s*(?:"(?:n(?:a(?:m(?:e(?:"[^{]{0,200})?)?)?)?)?)?'
_MAY_BE_UNMARKED = re.compile(
    rf"(?:`{{1,3}}|```(?:j(?:s(?:on?)?)?)?|```(?:json)?\s*|(?:```(?:json)?\s*)?{_BEGUN})\Z"
)
"""What may become one."""


class OutputParser:
    """Cuts one answer into events. What may begin a mark is held back until it is known.

    Tokens go with the text that shows them; those of calls are left out.
    """

    def __init__(self, index: int, tools: Collection[str] = ()) -> None:
        """tools: names of those whose calls are looked for."""
        self._index = index
        self._tools = tools
        self._state = "text"
        self._held = ""
        self._tokens: deque[TokenInfo] = deque()
        self._n_passed = 0  # characters before those held, of the first token among them
        self._shown: list[TokenInfo] = []
        self._origin = ""
        self._arguments = _Braces()
        self._end = END
        self._has_text = False
        self.n_calls = 0

    def push(self, text: str, tokens: Sequence[TokenInfo], origin: str = "") -> Iterator[Event]:
        """Yields what more text says. tokens: of the text, in order. origin: of the text."""
        self._held += text
        self._tokens += tokens
        self._origin = origin
        if not self._tools:  # most of the time
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
            match self._state:
                case "text":
                    yield from self._in_text(is_last)
                case "call":
                    yield from self._in_call(is_last)
                case "arguments":
                    yield from self._in_arguments(is_last)
                case "end":
                    yield from self._in_end(is_last)

    def _in_text(self, is_last: bool) -> Iterator[Event]:
        if not self._tools:
            yield from self._text(len(self._held))
            return
        if self.n_calls:  # only what separates calls stands behind one
            self._take(len(self._held) - len(self._held.lstrip()))
        n, place = self._place_of(BEGIN, is_last)
        at, head = self._unmarked(is_last)
        if 0 <= at <= n:
            yield from self._text(at)
            if head is not None:
                self._take(head.end() - at)
                yield self._call(head[2], _FENCE if head[1] else "}")
            return
        yield from self._text(n)
        if place >= 0:
            self._take(len(BEGIN))
            self._state = "call"

    def _unmarked(self, is_last: bool) -> tuple[int, re.Match[str] | None]:
        """Returns where a call without marks begins, or -1, and its head once that is known.

        One without a fence is all of an answer.
        """
        starts = [fence.start() for fence in re.finditer(r"```|`{1,2}\Z", self._held)]
        blank = len(self._held) - len(self._held.lstrip())
        if not self._has_text and self._held[blank : blank + 1] == "{":
            starts.insert(0, blank)
        for at in starts:
            head = _UNMARKED.match(self._held, at)
            if head and head[2] in self._tools:
                return at, head
            if not is_last and _MAY_BE_UNMARKED.match(self._held, at):
                return at, None
        return -1, None

    def _call(self, name: str, end: str) -> Event:
        """Returns the event that begins a call. end: what ends it behind its arguments."""
        self._arguments, self._state, self._end = _Braces(), "arguments", end
        call_id = f"call_{secrets.token_hex(12)}"
        self.n_calls += 1
        return CallDelta(self._index, self.n_calls - 1, "", call_id, name)

    def _in_call(self, is_last: bool) -> Iterator[Event]:
        if head := _HEAD.match(self._held):
            self._take(head.end())
            yield self._call(re.sub(r"\\(.)", r"\1", head[1]), END)

    def _in_arguments(self, is_last: bool) -> Iterator[Event]:
        n = self._arguments.count(self._held)
        if text := self._take(n):
            yield CallDelta(self._index, self.n_calls - 1, text)
        if self._arguments.is_over:
            self._state = "end"

    def _in_end(self, is_last: bool) -> Iterator[Event]:
        yield from ()
        at = self._held.find(self._end)
        if at >= 0:
            n = at + len(self._end)
            rest = self._held[n:]
            self._take(n + len(rest) - len(rest.lstrip()))
            self._state = "text"

    def _place_of(self, mark: str, is_last: bool) -> tuple[int, int]:
        """Returns how many characters are certain to be before ``mark``, and where it is, or -1."""
        at = self._held.find(mark)
        n_held = 0 if is_last else overlap(self._held, mark)
        return (at if at >= 0 else len(self._held) - n_held), at

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
        self._has_text |= bool(text.strip())
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
