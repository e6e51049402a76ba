"""How Sweep's models of the next edit are asked: files behind separators.

Source: the published prompt of sweep-next-edit-1.5B; for the second version, the package
``sweep-autocomplete`` (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.autocomplete.document import Document
from edgedec.autocomplete.edits.changes import Change
from edgedec.autocomplete.edits.edit_prompt import (
    EditContext,
    EditPrompt,
    Special,
    before_latest,
    encode_parts,
    special_token,
    with_cursor,
)
from edgedec.autocomplete.edits.lines import joined, lines_of
from edgedec.autocomplete.edits.window import EditWindow, line_of, rows_of, window_at
from edgedec.runtime.engine.engine import Engine

_MARK = Special("<|file_sep|>")
_CURSOR = "<|cursor|>"
_LF = "\n"
_MAX_CHANGES = 6
_N_AROUND = 3  # lines around a change in a diff, as most tools write it
_MAX_LINES, _CHUNK = 800, 300
"""Of a file that is shown whole, and of the part that is shown of a longer one."""

_MAX_LINE, _DOTS = 600, "..."


class SweepFormat:
    """Changes, then the window as it was, as it is, and as it will be."""

    n_lines, n_above, is_trained = 21, 7, True
    reserved: tuple[str, ...] = ()

    def __init__(self, engine: Engine) -> None:
        self._tokenizer = engine.tokenizer
        self._mark = special_token(engine.tokenizer, _MARK)

    def window(self, document: Document, line: int, n_lines: int, n_above: int) -> EditWindow:
        """Returns a number of lines."""
        return window_at(document, line, n_lines, 0, n_above)

    def prompt(self, context: EditContext) -> EditPrompt:
        tokens = encode_parts(self._tokenizer, [*sweep_parts(context), "\n"])
        return EditPrompt(tokens, context.window.text, stop_token_ids=(self._mark,))


class Sweep2Format(SweepFormat):
    """That of the second version: the file first, and line numbers in the names."""

    n_lines, n_above = 8, 2
    reserved: tuple[str, ...] = (_CURSOR,)

    def window(self, document: Document, line: int, n_lines: int, n_above: int) -> EditWindow:
        """Returns a number of lines. Where it begins with empty ones, it begins later."""
        lines, n_above = lines_of(document.text), min(n_above, self.n_above)
        line = max(0, min(line, len(lines) - 1))
        first, end = max(0, line - n_above), min(len(lines), line + n_lines - n_above)
        while first < end and not lines[first].strip():
            first += 1
            end += end < len(lines)
        while end > first and not lines[end - 1].strip():
            end -= 1
        return window_at(document, first, end - first, 0, 0)

    def prompt(self, context: EditContext) -> EditPrompt:
        tokens = encode_parts(self._tokenizer, sweep2_parts(context))
        prediction, stop = context.window.text, (self._mark,)
        return EditPrompt(tokens, prediction, stop_token_ids=stop, marks={_CURSOR: None})


def sweep_parts(context: EditContext) -> list[str]:
    """Returns the prompt of the first version."""
    window = context.window
    sections = [
        f"{change.name}.diff\noriginal:\n{_LF.join(change.before)}\n"
        f"updated:\n{_LF.join(change.after)}"
        for change in context.changes
    ]
    sections += [
        f"original/{window.name}\n{before_latest(window, context.changes)}",
        f"current/{window.name}\n{window.text.removesuffix(_LF)}",
        f"updated/{window.name}",
    ]
    return _parts(sections)


def sweep2_parts(context: EditContext) -> list[str]:
    """Returns the prompt of the second version."""
    window = context.window
    changes = [change for change in context.changes if _is_shown(change)]
    now = with_cursor(window.text, _cursor(context), _CURSOR)
    is_at_end = window.cursor == len(window.text)
    row = window.text[: window.cursor or 0].count("\n") - is_at_end
    was = _before(window, changes)
    place = f"{window.name}:{row + 1}:{row + len(window.lines) + 1 + is_at_end}"
    file = f"{window.name}\n{_excerpt(context)}"
    described = [_section(change) for change in changes[-_MAX_CHANGES:]]
    sections = [
        file if described else f"{file}\n",
        *described,
        f"original/{place}\n{was if is_at_end else was.removesuffix(_LF)}",
        f"current/{place}\n{now.removesuffix(_LF)}",
        f"updated/{place}\n",
    ]
    return _parts([_short_lines(section) for section in sections])


def _cursor(context: EditContext) -> int:
    """Returns where the cursor stands in the window.

    Sweep counts a cursor above the window, on an empty line, back from the end of the window.
    """
    window, document = context.window, context.document
    if window.cursor is not None:
        return window.cursor
    between = _LF.join(rows_of(document.text[document.cursor : window.start]))
    end = window.start + len(window.text)
    is_cut = end > len(document.text) and not document.text.endswith(("\n", "\r"))
    return max(0, len(window.text) - is_cut - len(between))


def _parts(sections: Sequence[str]) -> list[str]:
    """Returns sections, each behind a separator, with a line feed between each two."""
    ends = ["\n"] * (len(sections) - 1) + [""]
    pairs = zip(sections, ends, strict=True)
    return [part for section, end in pairs for part in (_MARK, f"{section}{end}")]


def _is_shown(change: Change) -> bool:
    """Says whether a change has more to it than white space around its lines."""
    return "\n".join(change.before).strip() != "\n".join(change.after).strip()


def _excerpt(context: EditContext) -> str:
    """Returns the document before the changes; of a long one, the part around the cursor."""
    rows = rows_of(context.document.text)
    text, lines = _LF.join(rows), lines_of(context.document.text)
    if len(lines) <= _MAX_LINES:
        return text
    step = _CHUNK // 2
    start = max(0, round((line_of(context.document) - step) / step)) * step
    return "\n".join(lines[start : start + _CHUNK])


def _before(window: EditWindow, changes: Sequence[Change]) -> str:
    """Returns the window without the latest changes, as far back as they are found in it."""
    text = window.text
    for change in reversed(changes):
        above, below = change.above[-1:], change.below[:1]
        around = [_text(change, above, part, below) for part in (change.before, change.after)]
        bare = [_text(change, (), part, ()) for part in (change.before, change.after)]
        for old, new in (around, bare) if above else (bare,):
            if new.strip() and new in text:
                text = text.replace(new, old, 1)
                break
        else:
            break
    return text


def _text(change: Change, above: Sequence[str], part: Sequence[str], below: Sequence[str]) -> str:
    """Returns lines of a change; the last line that its diff shows has no line feed."""
    text = joined([*above, *part, *below])
    n_shown = len(change.below[:_N_AROUND])
    return text if n_shown > len(below) else text.removesuffix("\n")


def _section(change: Change) -> str:
    """Returns a change with a line on either side, and where it is.

    The last line is counted as Sweep does: without the first row of the hunk.
    """
    above, below = change.above[-_N_AROUND:], change.below[:_N_AROUND]
    old = joined([*above[-1:], *change.before, *below[:1]]).strip("\n")
    new = joined([*above[-1:], *change.after, *below[:1]]).strip("\n")
    is_first_old = not above and bool(change.before)
    start = change.line + 1 - len(above)
    end = start + len(above) + len(change.after) + len(below) - (not is_first_old) - 1
    return f"{change.name}:{start}:{end}\noriginal:\n{old}\nupdated:\n{new}"


def _short_lines(text: str) -> str:
    """Returns a text without the ends of very long lines."""
    return "\n".join(
        line if len(line) <= _MAX_LINE else line[:_MAX_LINE] + _DOTS for line in text.split("\n")
    )
