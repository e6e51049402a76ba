"""What a model that predicts edits is asked, and what its answer is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Protocol

from edgedec.autocomplete.document import Document
from edgedec.autocomplete.edits.changes import Change
from edgedec.autocomplete.edits.window import EditWindow
from edgedec.models.errors import ConfigError
from edgedec.runtime.text.tokenizer import Codec


@dataclass(frozen=True)
class EditContext:
    """What a model may read before it rewrites a window. changes: the latest last."""

    document: Document
    window: EditWindow
    changes: Sequence[Change] = ()


@dataclass(frozen=True)
class EditPrompt:
    """A prompt whose answer is the window, rewritten.

    prediction: what the answer would be if nothing changed. stop, stop_token_ids: what ends it.
    opening: lines with which the answer begins; they are in the prompt already.
    marks: texts in the answer that are none of the window's. A number is a line of the window: an
        answer that begins with this mark begins there, and one that ends with it ends there.
    """

    tokens: Sequence[int]
    prediction: str
    opening: str = ""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    marks: Mapping[str, int | None] = field(default_factory=dict)


class EditFormat(Protocol):
    """How the models of a publisher are asked.

    n_lines, n_above: of a window, and of these above where it is for; 0: as many as have room in
    the tokens that the publisher allows. is_trained: for edits; other
    models make many that have nothing to do with the changes. reserved: texts that code with them
    cannot be asked about.
    """

    n_lines: int
    n_above: int
    is_trained: bool
    reserved: tuple[str, ...]

    def window(self, document: Document, line: int, n_lines: int, n_above: int) -> EditWindow:
        """Returns what to ask about for a line."""

    def prompt(self, context: EditContext) -> EditPrompt:
        """Returns the prompt for a window."""


class Special(str):
    """The text of a special token. Text of a document that reads the same is not one."""

    __slots__ = ()


def encode_parts(tokenizer: Codec, parts: Sequence[str]) -> list[int]:
    """Returns the tokens of texts and special tokens.

    Raises:
        ConfigError: The tokenizer lacks a special token.
    """
    return [
        token
        for part in parts
        for token in (
            [special_token(tokenizer, part)]
            if isinstance(part, Special)
            else tokenizer.encode(part)
        )
    ]


def special_token(tokenizer: Codec, text: str) -> int:
    """Returns a special token by its text.

    Raises:
        ConfigError: The tokenizer has no such token.
    """
    ids = tokenizer.encode_rendered(text, {})
    if text not in tokenizer.special_texts or len(ids) != 1:
        raise ConfigError(
            f"this format of edits needs a model whose tokenizer has {text}: this one has not. "
            "Choose the format of this model"
        )
    return ids[0]


def patch(change: Change, n_around: int, is_split: bool = True) -> str:
    """Returns a change as a hunk of a unified diff.

    n_around: lines on either side, as far as they are known.
    is_split: lines within the change that stay as they are, are shown once.
    """
    above, below = change.above[max(0, len(change.above) - n_around) :], change.below[:n_around]
    old, new = ((*above, *part, *below) for part in (change.before, change.after))
    start = change.line + 1 - len(above)
    matcher = SequenceMatcher(None, change.before, change.after, autojunk=False)
    whole = [("replace", 0, len(change.before), 0, len(change.after))]
    rows = [(" ", above)]
    for kind, i, i_end, j, j_end in matcher.get_opcodes() if is_split else whole:
        if kind == "equal":
            rows.append((" ", change.before[i:i_end]))
        else:
            rows += [("-", change.before[i:i_end]), ("+", change.after[j:j_end])]
    rows.append((" ", below))
    body = "".join(f"{mark}{line}\n" for mark, lines in rows for line in lines)
    return f"@@ -{start},{len(old)} +{start},{len(new)} @@\n{body}"


def before_latest(window: EditWindow, changes: Sequence[Change]) -> str:
    """Returns the window's lines as they were before the latest change, if that is in it."""
    lines = list(window.lines)
    for change in changes[-1:]:
        start = change.line - window.first
        is_inside = change.name == window.name and 0 <= start <= len(lines)
        if is_inside and tuple(lines[start : start + len(change.after)]) == change.after:
            lines[start : start + len(change.after)] = change.before
    return "\n".join(lines)


def with_cursor(text: str, cursor: int | None, mark: str) -> str:
    """Returns a text with a mark where the cursor is."""
    return text if cursor is None else text[:cursor] + mark + text[cursor:]
