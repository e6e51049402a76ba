"""How Zed's first model is asked: an excerpt with marks around what may be changed.

Source: Zed's editor, crate ``zeta_prompt``, module ``zeta1``.
"""

from __future__ import annotations

from edgedec.autocomplete.document import Document
from edgedec.autocomplete.edits.edit_prompt import EditContext, EditPrompt, patch, with_cursor
from edgedec.autocomplete.edits.window import EditWindow, window_within
from edgedec.runtime.engine.engine import Engine

_CURSOR = "<|user_cursor_is_here|>"
_START, _END = "<|editable_region_start|>", "<|editable_region_end|>"
_FILE_START = "<|start_of_file|>"
_N_EDITABLE, _N_CONTEXT = 350, 150  # tokens
_MAX_CHANGES, _N_AROUND = 6, 3
_PROMPT = (
    "### Instruction:\nYou are a code completion assistant and your task is to analyze user edits "
    "and then rewrite an excerpt that the user provides, suggesting the appropriate edits within "
    "the excerpt, taking into account the cursor location.\n\n### User Edits:\n\n{edits}\n\n"
    "### User Excerpt:\n\n{excerpt}\n\n### Response:\n"
)


class ZetaFormat:
    """That of Zed's first model."""

    n_lines, n_above, is_trained = 0, 0, True
    reserved: tuple[str, ...] = (_CURSOR, _START, _END, _FILE_START)

    def __init__(self, engine: Engine) -> None:
        self._tokenizer = engine.tokenizer

    def window(self, document: Document, line: int, n_lines: int, n_above: int) -> EditWindow:
        """Returns as many lines as fit into the tokens that Zed allows."""
        return window_within(
            document, line, _N_EDITABLE, _N_CONTEXT, lambda text: len(text.encode()) // 3
        )

    def prompt(self, context: EditContext) -> EditPrompt:
        window = context.window
        opening = f"```{window.name}\n{_begins(window)}{window.above}{_START}\n"
        tokens = self._tokenizer.encode(zeta_text(context) + opening)
        return EditPrompt(tokens, window.text + _END, stop=(_END, "```\n"), marks={_CURSOR: None})


def zeta_text(context: EditContext) -> str:
    """Returns the prompt without the part of the answer that is given."""
    window = context.window
    edits = "\n\n".join(
        f"User edited {change.name}:\n```diff\n{patch(change, _N_AROUND)}\n```"
        for change in context.changes[-_MAX_CHANGES:]
    )
    text = with_cursor(window.shown, window.cursor, _CURSOR)
    inside = f"{_begins(window)}{window.above}{_START}\n{text}\n{_END}{window.below}"
    return _PROMPT.format(edits=edits, excerpt=f"```{window.name}\n{inside}\n```")


def _begins(window: EditWindow) -> str:
    return f"{_FILE_START}\n" if window.first == window.above.count("\n") else ""
