"""The text around the cursor: what the application reports, mended by what was typed."""

from __future__ import annotations

from collections import deque

_STALE_S = 2.0
"""How long an application may go on reporting a text that was there before the latest keys."""

_N_STATES = 256
"""States before the latest that a report is compared with."""

_LONGEST = 4000
"""Characters that are kept on either side."""


class TrackedText:
    """Text before and behind the cursor.

    Applications report their text before they have handled the latest keys, or never. So keys
    change an own copy. A report of another text than the copy's recent states replaces it.
    """

    def __init__(self) -> None:
        self.before = self.after = ""
        self._states: deque[tuple[str, str]] = deque(maxlen=_N_STATES)
        self._changed_s = float("-inf")

    def type(self, text: str, now_s: float) -> None:
        """Something was written at the cursor."""
        self._change(self.before + text, self.after, now_s)

    def erase(self, now_s: float) -> None:
        """The character before the cursor was removed."""
        self._change(self.before[:-1], self.after, now_s)

    def lose(self) -> None:
        """The cursor went elsewhere, or the text changed in a way that nobody knows."""
        self.before = self.after = ""
        self._states.clear()
        self._changed_s = float("-inf")

    def report(self, text: str, cursor: int, now_s: float) -> bool:
        """Takes what the application says; returns whether that replaced the copy.

        A report that lacks the latest keys is stale for a moment, and changes nothing. Its cursor
        may be older than its text: Firefox reports so on a busy machine. Keys and clicks that move
        the cursor call `lose`, so there is no other reason for such a cursor.
        """
        state = text[:cursor][-_LONGEST:], text[cursor:][:_LONGEST]
        if state == (self.before, self.after):
            return False
        if now_s - self._changed_s < _STALE_S and self._is_recent(state):
            return False
        self.lose()
        self.before, self.after = state
        return True

    def _is_recent(self, state: tuple[str, str]) -> bool:
        """Says whether text and cursor are each those of a recent state."""
        before, after = state
        recent = [*self._states, (self.before, self.after)]
        return any(len(before) == len(b) for b, _ in recent) and any(
            before + after == b + a for b, a in recent
        )

    def _change(self, before: str, after: str, now_s: float) -> None:
        self._states.append((self.before, self.after))
        self.before, self.after, self._changed_s = before[-_LONGEST:], after, now_s
