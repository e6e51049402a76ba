"""How Zed's models Zeta-2 and Zeta-2.1 are asked, which are made of Seed-Coder: what is below comes
first.

Source: Zed's editor, crate ``zeta_prompt``, formats V0211SeedCoder and V0318SeedMultiRegions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from edgedec.autocomplete.document import Document
from edgedec.autocomplete.edits.changes import Change
from edgedec.autocomplete.edits.edit_prompt import (
    EditContext,
    EditPrompt,
    Special,
    encode_parts,
    patch,
    special_token,
    with_cursor,
)
from edgedec.autocomplete.edits.window import EditWindow, window_within
from edgedec.runtime.engine.engine import Engine

CURSOR = "<|user_cursor|>"
_SUFFIX, _PREFIX, _MIDDLE = map(Special, ("<[fim-suffix]>", "<[fim-prefix]>", "<[fim-middle]>"))
_FILE, _END_TOKEN = Special("<filename>"), Special("<[end▁of▁sentence]>")
_START, _SEPARATOR, _END = "<<<<<<< CURRENT\n", "=======\n", ">>>>>>> UPDATED"
_MARK = "<|marker_{}|>"
_MAX_TOKENS = int(4096 * 0.9)
_BYTES_PER_TOKEN = 3  # as Zed estimates it
_MAX_CHANGES, _N_AROUND = 6, 3
_N_EDITABLE, _N_CONTEXT = 350, 150  # tokens
_MIN_LINES, _MAX_LINES = 6, 16
"""Of a numbered region: where an empty line may end it, and where it ends anyway."""

_MAX_STEP = 5
"""Lines by which a border moves on, away from closing brackets and the like."""

_TAIL = re.compile(r"[}\])]|(break|continue|return|throw|end);*\Z")


class _SeedCoderFormat:
    """What both formats share: changes and other parts of the file, around the window."""

    n_lines, n_above, is_trained = 0, 0, True
    reserved: tuple[str, ...] = ()

    def __init__(self, engine: Engine) -> None:
        self._tokenizer = engine.tokenizer
        encode_parts(engine.tokenizer, [_SUFFIX, _PREFIX, _MIDDLE, _FILE])
        self._end = special_token(engine.tokenizer, _END_TOKEN)

    def window(self, document: Document, line: int, n_lines: int, n_above: int) -> EditWindow:
        """Returns as many lines as fit into the tokens that Zed allows."""
        return window_within(document, line, _N_EDITABLE, _N_CONTEXT, _n_tokens)


class Zeta2Format(_SeedCoderFormat):
    """That of Zeta-2: the window is one side of a conflict, and the model writes the other."""

    reserved: tuple[str, ...] = (_START, _SEPARATOR, _END, CURSOR)

    def prompt(self, context: EditContext) -> EditPrompt:
        tokens = encode_parts(self._tokenizer, zeta2_parts(context))
        return EditPrompt(
            tokens,
            context.window.text + _END,
            stop=(_END,),
            stop_token_ids=(self._end,),
            marks={CURSOR: None},
        )


class Zeta21Format(_SeedCoderFormat):
    """That of Zeta-2.1: numbered marks around regions of the window.

    The model writes from one mark to another. What is around them stays as it is.
    """

    reserved: tuple[str, ...] = (CURSOR, _MARK[:9])

    def prompt(self, context: EditContext) -> EditPrompt:
        window = context.window
        starts = region_starts(window)
        marks = {_MARK.format(i): start for i, start in enumerate(starts, 1)}
        tokens = encode_parts(self._tokenizer, zeta21_parts(context))
        return EditPrompt(
            tokens,
            _marked(window, cursor=""),
            stop_token_ids=(self._end,),
            marks={CURSOR: None, **marks},
        )


def zeta2_parts(context: EditContext) -> list[str]:
    """Returns the prompt of Zeta-2."""
    text = with_cursor(context.window.shown, context.window.cursor, CURSOR)
    return _parts(context, f"{_START}{_ended(text)}{_SEPARATOR}")


def zeta21_parts(context: EditContext) -> list[str]:
    """Returns the prompt of Zeta-2.1."""
    return _parts(context, _ended(_marked(context.window, CURSOR)))


def _parts(context: EditContext, marked: str) -> list[str]:
    """Returns the prompt around a window with its marks."""
    window = context.window
    below = _ended(window.below)
    here = [_FILE, f"{window.name}\n{window.above}{marked}"]
    room = _MAX_TOKENS - _n_tokens(_SUFFIX + below + _PREFIX)
    room -= _n_tokens("".join(here) + _MIDDLE)
    return [_SUFFIX, below, _PREFIX, *_history(context.changes, room), *here, _MIDDLE]


def _history(changes: Sequence[Change], room: int) -> list[str]:
    """Returns the latest changes for which there is room, in tokens."""
    title, texts = "edit_history\n", list[str]()
    room -= _n_tokens(_FILE + title)
    for change in reversed(changes[-_MAX_CHANGES:]):
        name = change.name.lstrip("/")
        text = f"--- a/{name}\n+++ b/{name}\n{patch(change, _N_AROUND)}"
        room -= _n_tokens(text)
        if room < 0:
            break
        texts.append(text)
    return [_FILE, f"{title}{''.join(reversed(texts))}\n"] if texts else []


def _marked(window: EditWindow, cursor: str) -> str:
    """Returns the window with a numbered mark where a region begins or the last one ends."""
    lines = [f"{line}\n" for line in window.lines]
    if lines and not window.is_to_end:
        lines[-1] = lines[-1].removesuffix("\n")
    starts = region_starts(window)
    text, place = "", window.cursor if cursor else None
    for i, (start, end) in enumerate(pairwise(starts), 1):
        region = "".join(lines[start:end])
        is_here = place is not None and place <= len(region)
        text += _MARK.format(i) + with_cursor(region, place if is_here else None, cursor)
        place = None if is_here or place is None else place - len(region)
    return text + _MARK.format(len(starts))


def region_starts(window: EditWindow) -> list[int]:
    """Returns the first line of each region, and the number of lines behind them.

    A region ends before the first text behind an empty line, and in any case soon.
    """
    is_blank_last = len(window.lines) > 1 and not window.lines[-1] and not window.is_to_end
    lines = window.lines[:-1] if is_blank_last else window.lines
    starts, i = [0], 0
    while i < len(lines):
        n = i - starts[-1]
        start = _good_start(lines, i)
        is_behind_blank = i > 0 and bool(lines[i].strip()) and not lines[i - 1].strip()
        is_end = is_behind_blank and n >= _MIN_LINES and len(lines) - start >= _MIN_LINES
        if (is_end or n >= _MAX_LINES) and start > starts[-1]:
            starts.append(start)
            i = start
        i += 1
    return [*starts, len(window.lines)]


def _good_start(lines: Sequence[str], first: int) -> int:
    """Returns the first line from ``first`` on that may begin a region; ``first`` if none does."""
    near = range(first, min(len(lines), first + _MAX_STEP))
    return next((i for i in near if lines[i].strip() and not _TAIL.match(lines[i].strip())), first)


def _ended(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


def _n_tokens(text: str) -> int:
    return len(text.encode()) // _BYTES_PER_TOKEN
