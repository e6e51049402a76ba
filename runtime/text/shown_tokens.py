"""Which tokens an answer's text is made of, as it appears."""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass


@dataclass(frozen=True)
class ShownToken:
    """Tokens of an output, by their places, that complete ``text`` of the answer together.

    Several are parts of one character, or of several that only the last one completes.
    """

    places: tuple[int, ...]
    text: str


class ShownTokens:
    """Follows characters from the tokens that brought them to the text that shows them.

    Tokens whose characters are left out (thoughts, marks, stop texts) are not among ``shown``.
    """

    def __init__(self) -> None:
        self.shown: list[ShownToken] = []
        self._n_tokens = 0
        self._silent: list[int] = []  # places of tokens that completed nothing yet
        self._groups: dict[int, tuple[int, ...]] = {}
        self._n_left: dict[int, int] = {}  # characters that are neither shown nor left out
        self._texts: dict[int, str] = {}
        self._raw: deque[int] = deque()  # the place of each character, not yet split
        self._answer: deque[int] = deque()  # and of those of the answer, not yet shown

    def begin(self, n_characters: int, is_last: bool = False) -> None:
        """A further token brings so many characters; with ``is_last`` the end does."""
        if not is_last:
            self._silent.append(self._n_tokens)
            self._n_tokens += 1
        if n_characters and self._silent:
            place = self._silent[-1]
            self._groups[place], self._silent = tuple(self._silent), []
            self._n_left[place] = n_characters
            self._raw.extend([place] * n_characters)
        elif n_characters:  # of a token that is known already
            self._raw.extend([-1] * n_characters)

    def answer(self, n_characters: int) -> None:
        """The next characters belong to the answer."""
        self._answer.extend(self._raw.popleft() for _ in range(n_characters))

    def add(self, n_characters: int) -> None:
        """So many characters come in that no token brought."""
        self._answer.extend([-1] * n_characters)

    def leave_out(self, n_characters: int) -> None:
        """The next characters do not belong to it."""
        for _ in range(n_characters):
            self._settle(self._raw.popleft(), "")

    def show(self, text: str, marks: Container[int]) -> None:
        """The answer goes on with ``text``. marks: characters in it that are not shown."""
        for character in text:
            self._settle(self._answer.popleft(), "" if ord(character) in marks else character)

    def end(self) -> None:
        """No more is shown."""
        for place in sorted(self._n_left):
            self._close(place)

    def _settle(self, place: int, shown: str) -> None:
        if place not in self._n_left:
            return
        if shown:
            self._texts[place] = self._texts.get(place, "") + shown
        self._n_left[place] -= 1
        if not self._n_left[place]:
            self._close(place)

    def _close(self, place: int) -> None:
        del self._n_left[place]
        group, text = self._groups.pop(place), self._texts.pop(place, "")
        if text:
            self.shown.append(ShownToken(group, text))
