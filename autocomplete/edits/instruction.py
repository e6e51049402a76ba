"""How a chat model is asked for edits that was not made for them: in plain words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from edgedec.autocomplete.document import Document
from edgedec.autocomplete.edits.changes import Change
from edgedec.autocomplete.edits.edit_prompt import EditContext, EditPrompt, before_latest, patch
from edgedec.autocomplete.edits.window import EditWindow, names_in, removed_names, window_at
from edgedec.models.errors import ConfigError
from edgedec.runtime.engine.engine import Engine

_N_AROUND = 30  # lines on either side of a window
_MAX_OPENING = 3  # lines
_MAX_SHOWN = 8  # lines of an opening; small models that see fewer lose their place
_FENCE = re.compile("`{3,}")
_TASK = (
    "You complete a developer's edit. You are shown code, and the edit that the developer has just "
    "made to it. Write the whole code with this edit, and make the other changes that it "
    "requires, so that the code is consistent again: renamed names, changed types, new "
    "parameters, new fields. Change nothing else. If nothing else has to change, write the code "
    "with this edit alone."
)
_LANGUAGES = {
    "py": "python",
    "rs": "rust",
    "js": "javascript",
    "ts": "typescript",
    "md": "markdown",
}


class InstructionFormat:
    """Asks a chat model in plain words. What changes from key to key, the latest edit, is last.

    So a key has the model read that edit alone: the code before it stays the same.
    """

    n_lines, n_above = 21, 2  # each takes time to copy; what stands above is shown anyway
    is_trained = False
    reserved: tuple[str, ...] = ()

    def __init__(self, engine: Engine) -> None:
        if not engine.has_chat_template:
            raise ConfigError(
                "this model has no chat template, so it cannot be asked for edits in plain words. "
                "Use an instruct model such as Qwen2.5-Coder-1.5B-Instruct; or a model made for "
                "edits (Sweep, Zeta, Instinct) and the name of its format"
            )
        self._engine = engine

    def window(self, document: Document, line: int, n_lines: int, n_above: int) -> EditWindow:
        """Returns a number of lines, and those around them."""
        return window_at(document, line, n_lines, _N_AROUND, n_above)

    def prompt(self, context: EditContext) -> EditPrompt:
        window = context.window
        name = PurePosixPath(window.name).name or "the file"
        suffix = PurePosixPath(window.name).suffix[1:]
        mark = _fence(window, context.changes)
        fence = mark + _LANGUAGES.get(suffix, suffix)
        parts: list[str] = []
        if window.above:
            parts.append(f"{name} begins:\n\n{fence}\n{window.above}{mark}\n")
        earlier = "".join(_patch(change) for change in context.changes[:-1])
        parts += [f"Earlier edits:\n\n{mark}diff\n{earlier}{mark}\n"] if earlier else []
        was = before_latest(window, context.changes)
        parts.append(f"The code of {name}:\n\n{fence}\n{was}\n{mark}\n")
        latest = "".join(_patch(change) for change in context.changes[-1:])
        parts.append(f"The edit:\n\n{mark}diff\n{latest}{mark}\n")
        messages = [
            {"role": "system", "content": _TASK},
            {"role": "user", "content": "\n".join(parts)},
        ]
        opening = _opening(window, context.changes)
        shown = "".join(opening.splitlines(keepends=True)[-_MAX_SHOWN:])
        written = self._engine.tokenizer.encode(f"{fence}\n{shown}")
        tokens = [*self._engine.encode(messages), *written]
        rest = window.text.removeprefix(opening)
        return EditPrompt(tokens, rest + mark, opening, (mark,))


def _fence(window: EditWindow, changes: Sequence[Change]) -> str:
    """Returns a fence that is longer than those in the code."""
    texts = [window.above, window.text, *(_patch(change) for change in changes)]
    longest = max((len(run) for text in texts for run in _FENCE.findall(text)), default=0)
    return "`" * max(3, longest + 1)


def _opening(window: EditWindow, changes: Sequence[Change]) -> str:
    """Returns the first lines of a window, if they have nothing to do with the latest change.

    Small models that are not shown where to begin write what stands above it once more. Where a
    name was removed, what has to follow begins where it still stands, so nothing before is copied.
    """
    latest = changes[-1]
    names = removed_names(latest)
    first = next((i for i, line in enumerate(window.lines) if names & names_in(line)), None)
    if first is not None:
        return "".join(f"{line}\n" for line in window.lines[:first])
    at = latest.line - window.first
    n_before = at if latest.name == window.name and at >= 0 else len(window.lines)
    for n, line in enumerate(window.lines[:n_before][:_MAX_OPENING], 1):
        if line.strip():
            return "\n".join([*window.lines[:n], ""])
    return ""


def _patch(change: Change) -> str:
    return patch(change, 1, is_split=False)
