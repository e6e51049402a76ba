"""The output's text as it appears: stop texts found, possible beginnings of them held back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from edgedec.runtime.text.tokenizer import Codec, Detokenizer


class StopFilter:
    """Passes text through up to the first stop text.

    The first stop text is the one that is complete first; of several complete at the same
    character, the longest. What is emitted does not depend on how the text is cut into pieces.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(stop)
        self._held = ""
        self.is_stopped = False
        self.stop_text = ""  # the one that was completed

    def push(self, piece: str) -> str:
        """Returns the text now certain to be before any stop text."""
        if self.is_stopped or not self._stop:
            return "" if self.is_stopped else piece
        text = self._held + piece
        if match := self._first_match(text):
            self.is_stopped = True
            self.stop_text = text[slice(*match)]
            self._held = ""
            return text[: match[0]]
        n_held = self._n_possible(text)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]

    def flush(self) -> str:
        """Returns the text held back, once no more text will come."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, int] | None:
        """Returns (start, end) of the stop text that ends first, the longest of equals."""
        found = [(text.find(stop), len(stop)) for stop in self._stop]
        spans = [(start, start + n) for start, n in found if start >= 0]
        return min(spans, key=lambda span: (span[1], span[0]), default=None)

    def _n_possible(self, text: str) -> int:
        """Returns the length of the longest end of ``text`` that may begin a stop text."""
        longest = min(len(text), max(map(len, self._stop)) - 1)
        for n in range(longest, 0, -1):
            end = text[len(text) - n :]
            if any(stop.startswith(end) for stop in self._stop):
                return n
        return 0


_FIRST_MARK = 0x100000  # of a private-use plane


class TextStream:
    """Tokens in, text out: the detokeniser followed by the stop filter."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop: Sequence[str] = (),
        hidden: Mapping[int, str] | None = None,
    ) -> None:
        """hidden: tokens that stop texts spell and the output does not show.

        The filter sees a character of private use for each.
        """
        names = sorted((hidden or {}).items(), key=lambda item: -len(item[1]))
        self._marks = {token: chr(_FIRST_MARK + i) for i, (token, _) in enumerate(names)}
        self._unmarked = dict.fromkeys(map(ord, self._marks.values()), "")
        marked = list(stop)
        for token, name in names:
            marked = [text.replace(name, self._marks[token]) for text in marked]
        self._written = dict(zip([*marked, *stop], [*stop, *stop], strict=True))
        self._detokenizer = detokenizer
        self._filter = StopFilter(tuple(self._written)) if marked else None
        self._pieces: list[str] = []
        self.is_stopped = False  # a stop text was completed

    @property
    def text(self) -> str:
        """All text emitted so far."""
        return "".join(self._pieces)

    @property
    def stop_text(self) -> str:
        """The stop text that was completed, as the request wrote it; empty if none was."""
        return "" if self._filter is None else self._written.get(self._filter.stop_text, "")

    def push(self, token: int) -> str:
        """Returns the text that ``token`` makes certain."""
        text = self._detokenizer.push(token)
        if self._filter is not None:
            text = self._unmarked_of(self._filter.push(text + self._marks.get(token, "")))
            self.is_stopped = self._filter.is_stopped
        if text:
            self._pieces.append(text)
        return text

    def flush(self) -> str:
        """Returns the rest, once no more tokens will come."""
        rest = self._detokenizer.flush()
        if self._filter is not None:
            rest = self._unmarked_of(self._filter.push(rest) + self._filter.flush())
            self.is_stopped = self._filter.is_stopped
        if rest:
            self._pieces.append(rest)
        return rest

    def _unmarked_of(self, text: str) -> str:
        return text.translate(self._unmarked) if self._marks else text


def maker_of_texts(
    codec: Codec, before: Sequence[int], stop: Sequence[str]
) -> Callable[[], TextStream]:
    """Returns a maker of streams of text that go on from ``before`` and end at a stop text."""
    hidden = codec.hidden_in(stop)
    return lambda: TextStream(codec.detokenizer(before), stop, hidden)
