"""How models that predict edits are asked, by the name of their format.

- `instruction`: any chat model, asked in plain words.
- `sweep`: Sweep's next-edit models. Source: the published prompt of sweep-next-edit-1.5B.
- `zeta`: Zed's first model. Source: Zed's editor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from edgedec.autocomplete.edits.changes import Change
from edgedec.autocomplete.edits.window import EditWindow, names_in, removed_names
from edgedec.models.errors import ConfigError
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.text.infill import find_infill_tokens


@dataclass(frozen=True)
class EditContext:
    """What a model may read before it rewrites a window. changes: the latest last."""

    window: EditWindow
    changes: Sequence[Change] = ()


@dataclass(frozen=True)
class EditPrompt:
    """A prompt whose answer is the window, rewritten.

    prediction: what the answer would be if nothing changed. stop, stop_token_ids: what ends it.
    opening: lines with which the answer begins; they are in the prompt already.
    """

    tokens: Sequence[int]
    prediction: str
    opening: str = ""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()


class EditFormat(Protocol):
    """How the models of a publisher are asked.

    n_above: lines of a window above where it is for. is_trained: for edits; other models make many
    that have nothing to do with the changes.
    """

    n_above: int
    is_trained: bool

    def prompt(self, context: EditContext) -> EditPrompt:
        """Returns the prompt for a window."""


_MAX_OPENING = 3  # lines
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

    is_trained = False
    n_above = 2  # each takes time to copy; what stands above them is shown anyway

    def __init__(self, engine: Engine) -> None:
        if not engine.has_chat_template:
            raise ConfigError(
                "this model has no chat template, so it cannot be asked for edits in plain words: "
                "choose an instruct model, or a model made for edits and its format"
            )
        self._engine = engine

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
        was = _before_latest(window, context.changes)
        parts.append(f"The code of {name}:\n\n{fence}\n{was}\n{mark}\n")
        latest = "".join(_patch(change) for change in context.changes[-1:])
        parts.append(f"The edit:\n\n{mark}diff\n{latest}{mark}\n")
        messages = [
            {"role": "system", "content": _TASK},
            {"role": "user", "content": "\n".join(parts)},
        ]
        opening = _opening(window, context.changes)
        written = self._engine.tokenizer.encode(f"{fence}\n{opening}")
        tokens = [*self._engine.encode(messages), *written]
        rest = window.text.removeprefix(opening)
        return EditPrompt(tokens, rest + mark, opening, (mark,))


class SweepFormat:
    """Sweep's: other files, changes, then the window as it was, as it is, and as it will be."""

    n_above, is_trained = 7, True

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        infill = find_infill_tokens(engine.tokenizer)
        if infill is None or infill.file is None:
            raise ConfigError(
                "the format sweep needs a model whose tokenizer has <|file_sep|>: this one has not"
            )
        self._mark: int = infill.file

    def prompt(self, context: EditContext) -> EditPrompt:
        window, name = context.window, context.window.name
        was = _before_latest(window, context.changes)
        sections = [
            f"{change.name}.diff\noriginal:\n{_lines(change.before)}\nupdated:\n{_lines(change.after)}"
            for change in context.changes
        ]
        sections += [f"original/{name}\n{was}", f"current/{name}\n{_lines(window.lines)}"]
        tokens: list[int] = []
        for section in sections:
            tokens += [self._mark, *self._engine.tokenizer.encode(f"{section}\n")]
        tokens += [self._mark, *self._engine.tokenizer.encode(f"updated/{name}\n")]
        return EditPrompt(tokens, window.text, stop_token_ids=(self._mark,))


_START, _END = "<|editable_region_start|>", "<|editable_region_end|>"
_CURSOR = "<|user_cursor_is_here|>"
_ZETA = (
    "### Instruction:\nYou are a code completion assistant and your task is to analyze user edits "
    "and then rewrite an excerpt that the user provides, suggesting the appropriate edits within "
    "the excerpt, taking into account the cursor location.\n\n### User Edits:\n\n{edits}\n\n"
    "### User Excerpt:\n\n{excerpt}\n\n### Response:\n"
)


class ZetaFormat:
    """That of Zed's first model: an excerpt with marks around what may be changed."""

    n_above, is_trained = 7, True

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def prompt(self, context: EditContext) -> EditPrompt:
        window, at = context.window, context.window.cursor
        text = window.text if at is None else window.text[:at] + _CURSOR + window.text[at:]
        begins = "<|start_of_file|>\n" if window.first == 0 else ""
        inside = f"{begins}{window.above}{_START}\n{text}{_END}\n{window.below}"
        edits = "\n\n".join(
            f'User edited "{change.name}":\n```diff\n{_patch(change)}```'
            for change in context.changes
        )
        prompt_text = _ZETA.format(edits=edits, excerpt=f"```{window.name}\n{inside}```")
        opening = f"```{window.name}\n{begins}{window.above}{_START}\n"
        tokens = self._engine.encode(prompt_text + opening)
        return EditPrompt(tokens, window.text + _END, stop=(_END, "```\n"))


FORMATS: dict[str, type[InstructionFormat] | type[SweepFormat] | type[ZetaFormat]] = {
    "instruction": InstructionFormat,
    "sweep": SweepFormat,
    "zeta": ZetaFormat,
}
"""Formats by name."""


def _patch(change: Change) -> str:
    n_above = change.line + 1 - len(change.above)
    n_old = len(change.above) + len(change.before) + len(change.below)
    n_new = len(change.above) + len(change.after) + len(change.below)
    return f"@@ -{n_above},{n_old} +{n_above},{n_new} @@\n{change.diff}"


def _before_latest(window: EditWindow, changes: Sequence[Change]) -> str:
    """Returns the window's lines as they were before the latest change, if that is in it."""
    lines = list(window.lines)
    for change in changes[-1:]:
        start = change.line - window.first
        is_inside = change.name == window.name and 0 <= start <= len(lines)
        if is_inside and tuple(lines[start : start + len(change.after)]) == change.after:
            lines[start : start + len(change.after)] = change.before
    return _lines(lines)


def _fence(window: EditWindow, changes: Sequence[Change]) -> str:
    """Returns a fence that is longer than those in the code."""
    texts = [window.above, window.text, *(change.diff for change in changes)]
    longest = max((len(run) for text in texts for run in _FENCE.findall(text)), default=0)
    return "`" * max(3, longest + 1)


def _opening(window: EditWindow, changes: Sequence[Change]) -> str:
    """Returns the first lines of a window, if they have nothing to do with the latest change.

    Small models that are not shown where to begin write what stands above it once more.
    """
    latest = changes[-1]
    names = removed_names(latest)
    at = latest.line - window.first
    n_before = at if latest.name == window.name and at >= 0 else len(window.lines)
    for n, line in enumerate(window.lines[:n_before][:_MAX_OPENING], 1):
        if names & set(names_in(line)):
            break
        if line.strip():
            return _lines([*window.lines[:n], ""])
    return ""


def _lines(lines: Sequence[str]) -> str:
    return "\n".join(lines)
