"""How models mark their thoughts, and a text cut into thoughts and answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

State = Literal["start", "thought", "text", "header", "call", "wrapper"]
"""Nothing yet; a thought; the answer; the name of a part; a call; what may surround an answer."""

Kind = Literal["thought", "text", "mark", "added"]
"""A part of a thought, of the answer, of neither; text of the answer that no token wrote."""

CALL_MARKS = ("<tool_call>", "</tool_call>")
"""Marks around calls of tools in answers, as the models of the Qwen and Hermes families write."""

_THOUGHT_PARTS = ("analysis", "thought", "thinking")
_HARMONY = ("<|channel|>", "<|message|>")
_PAIRS = (
    ("<|channel>thought", "<channel|>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("◁think▷", "◁/think▷"),
)
_UNNAMED = ("<unused94>thought", "<unused95>")  # MedGemma's; its template is Gemma 3's
PAIRED_MARKS = ("<think>", "</think>", *chain.from_iterable(_PAIRS))
"""Marks around thoughts, which templates look for in earlier answers."""

_WRAPPERS = (("<response>", "</response>"), ("<answer>", "</answer>"))
_STEPS = ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]")
_TAG = re.compile(r"</((?:[a-z]+[:_])?(?:think|thinking|thought|reasoning))>")
_CHANNELS = ("analysis", "commentary", "final")
_NO_TOOLS = ("user", "assistant", "all")  # recipients of messages
_TAIL = 64  # characters of a prompt in which a thought may have begun


@dataclass(frozen=True)
class ThoughtFormat:
    """How one model marks its thoughts.

    begin, end: around a thought. is_known: the template or the tokenizer names them.
    header: texts before and behind the name of the part that follows, in place of ``begin``.
    left_out: further marks that belong to neither thought nor answer.
    answer: what has to stand before an answer, where that is marked.
    wrapper: what may stand around an answer behind a thought.
    others: further marks around thoughts, which an output may begin with.
    """

    begin: str = "<think>"
    end: str = "</think>"
    is_known: bool = False
    header: tuple[str, str] | None = None
    left_out: tuple[str, ...] = ()
    answer: str = ""
    wrapper: tuple[str, str] | None = None
    others: tuple[tuple[str, str], ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """All marks."""
        others = chain.from_iterable(self.others)
        return (self.begin, self.end, *(self.header or ()), *self.left_out, *others)

    @property
    def openings(self) -> Mapping[str, State]:
        """What an output may begin with, and what follows; without ``answer`` also an answer."""
        openings: dict[str, State] = {self.begin: "thought"}
        return {**openings, self.answer: "text"} if self.answer else openings

    @property
    def before_answer(self) -> str:
        """What stands between the end of a thought and the answer, if that is marked."""
        return "".join((*self.left_out[:1], self.answer)) if self.answer else ""

    @property
    def closing(self) -> str:
        """What ends a thought before it began."""
        between = self.before_answer or "\n\n"
        return f"\n{self.end}{between}"

    def state_after(self, prompt: str) -> State:
        """Returns where an answer begins behind the text of ``prompt``, marks and all."""
        tail = prompt[-_TAIL:].rstrip()
        if tail.endswith(self.begin):
            return "thought"
        if tail.endswith(self.end) or (self.answer and tail.endswith(self.answer)):
            return "text"
        return "start"

    def marked(self, marks: Mapping[str, str]) -> ThoughtFormat:
        """Returns the format with special tokens as the characters that ``marks`` says."""

        def of(text: str) -> str:
            for name, mark in marks.items():
                text = text.replace(name, mark)
            return text

        header = None if self.header is None else (of(self.header[0]), of(self.header[1]))
        left_out = tuple(map(of, self.left_out))
        begin, end, answer = of(self.begin), of(self.end), of(self.answer)
        others = tuple((of(first), of(last)) for first, last in self.others)
        made = replace(self, begin=begin, end=end, header=header, left_out=left_out)
        return replace(made, answer=answer, others=others)


def find_thought_format(template: str, special_texts: Iterable[str]) -> ThoughtFormat:
    """Returns how a model marks its thoughts, by its chat template and special tokens.

    Templates need not name the marks; a text that begins with ``<think>`` is a thought anyway.
    """
    special = frozenset(special_texts)
    if special.issuperset(_HARMONY):
        begin, answer = (f"<|channel|>{name}<|message|>" for name in ("analysis", "final"))
        between = ("<|start|>assistant", "<|call|>", "<|constrain|>")
        return ThoughtFormat(begin, "<|end|>", True, _HARMONY, between, answer)
    if "<|think|>" in template and {"<|think|>", "<|content|>"} <= special:
        opening = ("<|begin|>assistant", "<|content|>")
        return ThoughtFormat("<|think|>", "<|end|>", True, None, opening, "<|content|>")
    for begin, end in _PAIRS:
        if end in template or (
            end in special and any(begin.startswith(opening) for opening in special)
        ):
            return ThoughtFormat(begin, end, True)
    if tag := _TAG.search(template):
        wrapper = next((pair for pair in _WRAPPERS if pair[0] in template), None)
        return ThoughtFormat(f"<{tag[1]}>", f"</{tag[1]}>", True, wrapper=wrapper)
    if _STEPS[1] in template:  # Apriel's
        return ThoughtFormat(*_STEPS, True, wrapper=("", "[END FINAL RESPONSE]"))
    is_known = {"<think>", "</think>"} <= special
    return ThoughtFormat(is_known=is_known, others=(_UNNAMED,))


class ThoughtSplitter:
    """Cuts an output into thoughts, answer and marks, whatever pieces it comes in.

    Marks that a special token spells count everywhere; others where a thought may begin or end.
    Line breaks around marks belong to neither part.
    """

    def __init__(self, marks: ThoughtFormat, state: State, special: Sequence[str] = ()) -> None:
        """marks: special tokens in them are characters of ``special``."""
        self._marks = marks
        self.state: State = state
        self._held = ""
        self._call = ""  # arguments so far
        self._has_ended = False  # a part did
        self._special = special
        self._is_fresh = state == "thought"  # line breaks mean nothing here
        self._pairs = [(marks.begin, marks.end), *marks.others]
        openings = [marks.header[0]] if marks.header else [marks.begin]
        marks_ = [*openings, marks.end, *marks.left_out]
        self._anywhere = [mark for mark in marks_ if any(token in mark for token in special)]

    @property
    def is_plain(self) -> bool:
        """All that comes is the answer: nothing is held, and no mark can follow."""
        return self.state == "text" and not (self._held or self._anywhere or self._is_fresh)

    def push(self, text: str, is_last: bool = False) -> Iterator[tuple[Kind, str]]:
        """Yields all that is certain, in order: parts of thoughts and answer, and what is left out.

        is_last: nothing follows.
        """
        self._held += text
        before = None
        while self._held and before != (self.state, self._held):
            before = self.state, self._held
            if self._is_fresh:
                yield from self._blank()
            yield from self._step(is_last)
        if is_last and self.state == "call" and _is_json(self._call):  # a stop token ended it
            yield from self._end_of_call()

    def _step(self, is_last: bool) -> Iterator[tuple[Kind, str]]:
        if self.state == "start":
            yield from self._start(is_last)
        elif self.state == "wrapper":
            yield from self._unwrap(is_last)
        elif self.state == "header":
            yield from self._header(is_last)
        elif self.state == "call":
            yield from self._arguments(is_last)
        elif self.state == "thought":
            yield from self._until([self._marks.end, *self._anywhere], "thought", is_last)
        else:
            yield from self._until(self._anywhere, "text", is_last)

    def _blank(self) -> Iterator[tuple[Kind, str]]:
        n = len(self._held) - len(self._held.lstrip("\n"))
        if n:
            yield "mark", self._take(n)
        self._is_fresh = not self._held

    def _start(self, is_last: bool) -> Iterator[tuple[Kind, str]]:
        head = self._held.lstrip()
        if self._marks.header is not None:
            yield from self._start_of_part(head, is_last)
            return
        marks = [*(begin for begin, _ in self._pairs), self._marks.end, *self._anywhere]
        if pair := next((pair for pair in self._pairs if head.startswith(pair[0])), None):
            n = len(self._held) - len(head) + len(pair[0])
            yield "mark", self._take(n)
            self._anywhere = [
                pair[1] if mark == self._marks.end else mark for mark in self._anywhere
            ]
            self._marks = replace(self._marks, begin=pair[0], end=pair[1])
            self.state, self._is_fresh = "thought", True
        elif head.startswith(self._marks.end):  # of a thought that did not begin
            yield "mark", self._take(len(self._held) - len(head) + len(self._marks.end))
            self.state, self._is_fresh = "text", True
        elif any(head.startswith(mark) for mark in self._anywhere):
            if head != self._held:
                yield "mark", self._take(len(self._held) - len(head))
            self.state = "text"
        elif is_last or not any(mark.startswith(head) for mark in marks):
            self.state = "text"

    def _start_of_part(self, head: str, is_last: bool) -> Iterator[tuple[Kind, str]]:
        """Sees whether a part begins with its recipient, with its channel, or with neither."""
        openings = ("to=", *(_CHANNELS if self._has_ended else ()))
        marks = [*openings, *self._anywhere]
        if head.startswith(tuple(marks)):
            yield "mark", self._take(len(self._held) - len(head))
            self.state = "header" if head.startswith(openings) else "text"
        elif is_last or not any(mark.startswith(head) for mark in marks):
            self.state = "text"

    def _header(self, is_last: bool) -> Iterator[tuple[Kind, str]]:
        assert self._marks.header is not None
        closing = self._marks.header[1]
        at = self._held.find(closing)
        if at < 0:
            if is_last:
                yield "mark", self._take(len(self._held))
            return
        words = self._words(self._held[:at])
        yield "mark", self._take(at + len(closing))
        recipient = next((word[3:] for word in words if word.startswith("to=")), "user")
        if recipient not in _NO_TOOLS:
            head = json.dumps({"name": recipient.removeprefix("functions.")}, ensure_ascii=False)
            yield "added", f'{CALL_MARKS[0]}{head[:-1]}, "arguments": '
            self.state, self._call = "call", ""
            return
        channel = next((word for word in words if not word.startswith("to=")), "")
        self.state = "thought" if channel.startswith(_THOUGHT_PARTS) else "text"
        self._is_fresh = True

    def _words(self, header: str) -> list[str]:
        """Returns the words of a header, which marks separate as well as blanks."""
        for mark in self._special:
            header = header.replace(mark, " ")
        return header.split()

    def _arguments(self, is_last: bool) -> Iterator[tuple[Kind, str]]:
        """Yields the arguments of a call, and what ends it once they are whole."""
        endings = [self._marks.end, *self._marks.left_out[:2]]
        for kind, part in self._until(endings, "text", is_last):
            if kind == "mark":
                yield from self._end_of_call()
            else:
                self._call += part
            yield kind, part

    def _end_of_call(self) -> Iterator[tuple[Kind, str]]:
        if not self._call.strip():
            yield "added", "{}"
        yield "added", f"}}{CALL_MARKS[1]}"

    def _unwrap(self, is_last: bool) -> Iterator[tuple[Kind, str]]:
        """Sees whether the answer is wrapped; its closing mark is left out then."""
        assert self._marks.wrapper is not None
        opening, closing = self._marks.wrapper
        if self._held.startswith(opening):
            yield "mark", self._take(len(opening))
            self.state, self._is_fresh = "text", True
            self._anywhere.append(closing)
        elif is_last or not opening.startswith(self._held):
            self.state = "text"

    def _until(
        self, marks: Sequence[str], kind: Literal["thought", "text"], is_last: bool
    ) -> Iterator[tuple[Kind, str]]:
        """Yields text of ``kind`` before the first of ``marks``, and passes that."""
        places = [(at, -len(mark), mark) for mark in marks if (at := self._held.find(mark)) >= 0]
        if places:
            at, _, mark = min(places)
            yield from self._before(at, kind)
            yield "mark", self._take(len(mark))
            self._pass(mark)
            return
        n_held = 0 if is_last else max((overlap(self._held, mark) for mark in marks), default=0)
        n = len(self._held) - n_held
        if kind == "thought" and not is_last:
            n = len(self._held[:n].rstrip("\n"))
        yield from self._before(n, kind, keep=not is_last)

    def _before(
        self, n: int, kind: Literal["thought", "text"], keep: bool = False
    ) -> Iterator[tuple[Kind, str]]:
        text = self._take(n)
        body = text.rstrip("\n") if kind == "thought" and not keep else text
        if body:
            yield kind, body
        if body != text:
            yield "mark", text[len(body) :]

    def _pass(self, mark: str) -> None:
        if self._marks.header is not None and mark == self._marks.header[0]:
            self.state = "header"
        elif mark == self._marks.begin:
            self.state, self._is_fresh = "thought", True
        elif mark == self._marks.end:
            is_over = self.state == "thought"
            self._is_fresh = self._is_fresh or is_over
            self.state = "wrapper" if is_over and self._marks.wrapper else "text"
            if self._marks.header is not None:  # some models leave out what begins the next part
                self.state, self._has_ended = "start", True
        elif self._marks.header is not None and mark in self._marks.left_out[:2]:
            self.state = "start"

    def _take(self, n: int) -> str:
        taken, self._held = self._held[:n], self._held[n:]
        return taken


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def overlap(text: str, mark: str) -> int:
    """Returns the length of the longest end of ``text`` that begins ``mark``."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
