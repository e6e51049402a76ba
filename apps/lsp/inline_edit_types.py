"""Messages of `textDocument/copilotInlineEdit`, which the protocol does not have.

Source: the language server of GitHub Copilot, and the plug-ins for Neovim that ask it.
"""

from __future__ import annotations

import attrs
from lsprotocol import types

INLINE_EDIT = "textDocument/copilotInlineEdit"
DID_SHOW_INLINE_EDIT = "textDocument/didShowInlineEdit"
DID_FOCUS = "textDocument/didFocus"
ACCEPT_EDIT, DISMISS_EDIT = "edgedec.acceptEdit", "edgedec.dismissEdit"
SKIP_EDIT = "edgedec.skipEdit"
"""Commands, whose argument is the identifier of an edit."""


@attrs.define
class EditedDocument:
    """A document, and the editor's number of the state that is meant, if it says so."""

    uri: str
    version: int | None = None


@attrs.define
class InlineEditContext:
    """Why edits are asked for, and what is wrong with the document as the editor knows it."""

    trigger_kind: types.InlineCompletionTriggerKind | None = None
    diagnostics: list[types.Diagnostic] | None = None


@attrs.define
class InlineEditParams:
    """Where an edit is asked for."""

    text_document: EditedDocument
    position: types.Position
    context: InlineEditContext | None = None


@attrs.define
class InlineEdit:
    """What is to stand in a range. command: to be run once it has been accepted.

    changes: the same edit in its smallest parts, in order, to be shown and made as one. Copilot's
    server does not have them.
    """

    text: str
    range: types.Range
    text_document: EditedDocument
    command: types.Command
    changes: list[types.TextEdit]


@attrs.define
class InlineEditList:
    """The answer: one edit, or none."""

    edits: list[InlineEdit]


@attrs.define
class InlineEditRequest:
    """The message of a request."""

    id: int | str
    params: InlineEditParams
    method: str = INLINE_EDIT
    jsonrpc: str = "2.0"
