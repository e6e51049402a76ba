"""How Instinct is asked, the model of Continue: a chat about an excerpt with marks in it.

Source: Continue's editor extension (Apache-2.0), ``core/nextEdit``.
"""

from __future__ import annotations

from edgedec.autocomplete.document import Document
from edgedec.autocomplete.edits.changes import Change
from edgedec.autocomplete.edits.edit_prompt import EditContext, EditPrompt, patch, with_cursor
from edgedec.autocomplete.edits.instinct_texts import REQUEST, SYSTEM
from edgedec.autocomplete.edits.window import EditWindow, rows_of, window_of
from edgedec.models.errors import ConfigError
from edgedec.runtime.engine.engine import Engine

_CURSOR = "<|user_cursor_is_here|>"
_START, _END = "<|editable_region_start|>", "<|editable_region_end|>"
_LF = "\n"
_N_SHOWN = 25  # lines above and below the cursor
_MAX_CHANGES, _N_AROUND = 6, 3
_HEADERS = ("---", "+++", "===")


class InstinctFormat:
    """The marked lines of an excerpt are written again, without the marks."""

    n_lines, n_above, is_trained = 7, 1, True
    reserved: tuple[str, ...] = (_CURSOR, _START, _END)

    def __init__(self, engine: Engine) -> None:
        if not engine.has_chat_template:
            raise ConfigError(
                "the format instinct needs a model with a chat template: this one has none. "
                "Choose the format of this model"
            )
        self._engine = engine

    def window(self, document: Document, line: int, n_lines: int, n_above: int) -> EditWindow:
        """Returns a number of lines, and those around them."""
        n_rows, n_above = len(rows_of(document.text)), min(n_above, self.n_above)
        rows = range(max(0, line - n_above), min(n_rows, line + n_lines - n_above))
        around = range(max(0, line - _N_SHOWN), min(n_rows, line + _N_SHOWN + 1))
        return window_of(document, rows, around)

    def prompt(self, context: EditContext) -> EditPrompt:
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": instinct_text(context)},
        ]
        marks: dict[str, int | None] = {_CURSOR: None, f"{_START}\n": None, _END: None}
        return EditPrompt(self._engine.encode(messages), context.window.shown, marks=marks)


def instinct_text(context: EditContext) -> str:
    """Returns what Instinct is asked, behind the system message."""
    window = context.window
    edits = "\n".join(map(_edit, context.changes[-_MAX_CHANGES:]))
    text = with_cursor(window.shown, window.cursor, _CURSOR)
    excerpt = f"{window.above}{_START}\n{text}\n{_END}{window.below}"
    return (
        f"{REQUEST}\n\n### Context:\n\n\n### User Edits:\n\n{edits}\n\n"
        f"### User Excerpt:\n{window.name}\n\n{excerpt}```\n### Response:"
    )


def _edit(change: Change) -> str:
    """Returns a change. As Continue does it, lines that look like headers are left out."""
    lines = patch(change, _N_AROUND).split("\n")
    shown = [line for line in lines if line.strip() and not line.startswith(_HEADERS)]
    return f'User edited file "{change.name}"\n\n```diff\n{_LF.join(shown)}\n```'
