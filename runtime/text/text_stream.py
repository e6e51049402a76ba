"""The output's text as it appears: thoughts apart, stop texts found, what may begin them held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from edgedec.runtime.text.shown_tokens import ShownTokens
from edgedec.runtime.text.thoughts import State, ThoughtFormat, ThoughtSplitter
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
        places = [(text.find(stop), len(stop)) for stop in self._stop]
        spans = [(start, start + n) for start, n in places if start >= 0]
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
    """Tokens in, text out: the detokeniser, the splitter of thoughts, and the stop filter.

    Stop texts are looked for in the answer alone, unless they spell a mark of thoughts.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stop: Sequence[str] = (),
        hidden: Mapping[int, str] | None = None,
        thoughts: ThoughtFormat | None = None,
        state: State = "text",
        trace: ShownTokens | None = None,
    ) -> None:
        """Makes a stream.

        Args:
            hidden: Tokens that stop texts and marks spell and the output does not show. The
                filters see a character of private use for each.
            thoughts: How thoughts are marked; None if there are none.
            state: Where the output begins.
            trace: Is given which tokens the text is made of.
        """
        names = sorted((hidden or {}).items(), key=lambda item: -len(item[1]))
        self._marks = {token: chr(_FIRST_MARK + i) for i, (token, _) in enumerate(names)}
        self._unmarked = dict.fromkeys(map(ord, self._marks.values()), "")
        marks = {name: self._marks[token] for token, name in names}
        of_marks = () if thoughts is None else tuple(filter(None, thoughts.texts))
        raw = [text for text in stop if any(mark in text for mark in of_marks)]
        self._written: dict[str, str] = {}
        self._raw_filter = self._filter_of(raw, marks)
        self._filter = self._filter_of([text for text in stop if text not in raw], marks)
        self._splitter: ThoughtSplitter | None = None
        if thoughts is not None:
            special = tuple(self._marks.values())
            self._splitter = ThoughtSplitter(thoughts.marked(marks), state, special)
        self._detokenizer = detokenizer
        self._trace = trace
        self._pieces: list[str] = []
        self._thoughts: list[str] = []
        self._n_taken = 0
        self._n_waiting = 0  # tokens that may turn out to be of a thought
        self.n_thought_tokens = 0
        self.is_stopped = False  # a stop text was completed

    @property
    def text(self) -> str:
        """All text of the answer emitted so far."""
        return "".join(self._pieces)

    @property
    def reasoning(self) -> str:
        """All text of thoughts so far."""
        return "".join(self._thoughts)

    @property
    def stop_text(self) -> str:
        """The stop text that was completed, as the request wrote it; empty if none was."""
        filters = (self._filter, self._raw_filter)
        first_stop = next(
            (
                stop_filter.stop_text
                for stop_filter in filters
                if stop_filter is not None and stop_filter.stop_text
            ),
            "",
        )
        return self._written.get(first_stop, "")

    def push(self, token: int) -> str:
        """Returns the text of the answer that ``token`` makes certain."""
        text = self._detokenizer.push(token)
        mark = self._marks.get(token, "") if self._marks else ""
        if self._trace is not None:
            self._trace.begin(len(text) + len(mark))
        before = None if self._splitter is None else self._splitter.state
        text = self._passed(text + mark)
        if before is not None:
            self._count(before)
        return text

    def flush(self) -> str:
        """Returns the rest of the answer, once no more tokens will come."""
        rest = self._detokenizer.flush()
        if self._trace is not None:
            self._trace.begin(len(rest), is_last=True)
        return self._passed(rest, is_last=True)

    def take_thought(self) -> str:
        """Returns the text of thoughts since this was called last."""
        if self._n_taken == len(self._thoughts):
            return ""
        text = "".join(self._thoughts[self._n_taken :])
        self._n_taken = len(self._thoughts)
        return text

    def _passed(self, text: str, is_last: bool = False) -> str:
        if self._raw_filter is not None:
            text = self._raw_filter.push(text) + (self._raw_filter.flush() if is_last else "")
            self.is_stopped |= self._raw_filter.is_stopped
        if self._splitter is not None and not self._splitter.is_plain:
            text = self._answer_in(text, is_last or self.is_stopped)
        elif self._trace is not None:
            self._trace.answer(len(text))
        if self._filter is not None:
            text = self._filter.push(text) + (self._filter.flush() if is_last else "")
            self.is_stopped |= self._filter.is_stopped
        if self._trace is not None:
            self._trace.show(text, self._unmarked)
            if is_last or self.is_stopped:
                self._trace.end()
        text = text.translate(self._unmarked) if self._marks else text
        if text:
            self._pieces.append(text)
        return text

    def _answer_in(self, text: str, is_last: bool) -> str:
        """Returns the answer in ``text``, and keeps the thoughts in it."""
        assert self._splitter is not None
        answer = ""
        for kind, part in self._splitter.push(text, is_last):
            if kind == "added":
                answer += part
                if self._trace is not None:
                    self._trace.add(len(part))
                continue
            if kind == "text":
                answer += part
            elif kind == "thought":
                self._thoughts.append(part.translate(self._unmarked))
            if self._trace is not None:
                settle = self._trace.answer if kind == "text" else self._trace.leave_out
                settle(len(part))
        return answer

    def _count(self, before: State) -> None:
        """Counts the latest token if it belongs to a thought, with its marks."""
        assert self._splitter is not None
        state = self._splitter.state
        if "thought" in (before, state):
            self.n_thought_tokens += 1 + self._n_waiting * (before != "thought")
        self._n_waiting = self._n_waiting + 1 if state in ("start", "header") else 0

    def _filter_of(self, stop: Sequence[str], marks: Mapping[str, str]) -> StopFilter | None:
        """Returns what ends an output at ``stop``, written with marks or without."""
        if not stop:
            return None
        marked = list(stop)
        for name, mark in marks.items():
            marked = [text.replace(name, mark) for text in marked]
        written = dict(zip([*marked, *stop], [*stop, *stop], strict=True))
        self._written |= written
        return StopFilter(tuple(written))


class MakeText(Protocol):
    """Makes a stream of text at its beginning, traced or not."""

    def __call__(self, trace: ShownTokens | None = None) -> TextStream:
        """Returns the stream."""


def maker_of_texts(
    codec: Codec,
    before: Sequence[int],
    stop: Sequence[str],
    thoughts: ThoughtFormat | None = None,
    state: State = "text",
) -> MakeText:
    """Returns a maker of streams of text that go on from ``before`` and end at a stop text."""
    hidden = codec.hidden_in([*stop, *(thoughts.texts if thoughts is not None else ())])

    def new_text(trace: ShownTokens | None = None) -> TextStream:
        return TextStream(codec.detokenizer(before), stop, hidden, thoughts, state, trace)

    return new_text
