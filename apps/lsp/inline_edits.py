"""Answers one editor's questions about the next edit, and remembers what it offered."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from lsprotocol import types

from edgedec.apps.lsp.documents import OpenDocument
from edgedec.apps.lsp.inline_edit_types import (
    ACCEPT_EDIT,
    EditedDocument,
    InlineEdit,
    InlineEditList,
    InlineEditParams,
)
from edgedec.apps.lsp.served_model import ServedModel
from edgedec.apps.lsp.text_buffer import LINE_END, to_units
from edgedec.autocomplete.edits import Edit
from edgedec.autocomplete.edits.replacements import replacements
from edgedec.models.errors import SessionError

_N_OFFERED = 64
"""Edits whose commands are still understood."""

_MAX_UNITS = 1 << 22
"""Of documents in which edits are predicted. Units: UTF-16 units."""


@dataclass(frozen=True, eq=False)
class _Question:
    """A question about a document; equal to itself only."""

    document: OpenDocument


class InlineEdits:
    """Answers what an editor asks about the next edit. Lives in the event loop."""

    def __init__(self, documents: Mapping[str, OpenDocument], model: ServedModel) -> None:
        self._documents = documents
        self._model = model
        self._offered: OrderedDict[str, Edit] = OrderedDict()
        self._open_question: _Question | None = None  # that has no answer yet
        self._latest: tuple[OpenDocument, int, Edit] | None = None

    async def inline_edit(self, params: InlineEditParams) -> InlineEditList:
        """Returns the next edit of a document; none if there is none, or the question is stale."""
        self._model.look()
        document = self._documents.get(params.text_document.uri)
        version = params.text_document.version
        if document is None or not document.has(params.position) or document.is_large(_MAX_UNITS):
            return InlineEditList([])
        if version is not None and version != document.version:
            return InlineEditList([])
        question = self._open_question = _Question(document)
        edit = await self._predict(question, params)
        if edit is None:
            return InlineEditList([])
        return InlineEditList([self._offer(document, edit)])

    def changing(self, document: OpenDocument, line: int) -> None:
        """A document is about to be changed in a line."""
        if self._open_question is not None and self._open_question.document is document:
            self._open_question = None
            if self._model.predictor is not None:
                self._model.predictor.pause()
        if abs(line - document.edited_line) > 1:
            self.see(document)  # what was changed before is a change of its own
        document.edited_line = line

    def see(self, document: OpenDocument) -> None:
        """Takes note of a document as it is now."""
        if not document.is_large(_MAX_UNITS):
            self._model.history.see(document.whole())

    def forget(self, uri: str) -> None:
        """A document was closed."""
        self._model.history.forget(uri)

    def insertion_at(self, document: OpenDocument, position: types.Position) -> str | None:
        """Returns what the latest edit of a document inserts at a position; None if it does not."""
        if self._latest is None:
            return None
        edited, version, edit = self._latest
        whole = document.whole(position)
        is_same = edited is document and version == document.version
        if not is_same or edit.jump != whole.cursor:
            return None
        old, n_same = whole.text[edit.start : edit.end], edit.jump - edit.start
        rest = old[n_same:]
        is_insertion = edit.text.endswith(rest) and len(edit.text) > len(old)
        return edit.text[n_same : len(edit.text) - len(rest)] if is_insertion else None

    def accept(self, identifier: str) -> None:
        """An edit was taken; its change arrives as any other."""
        edit = self._offered.pop(identifier, None)
        if edit is not None and self._model.predictor is not None:
            self._model.predictor.accept(edit)

    def dismiss(self, identifier: str) -> None:
        """An edit was not wanted."""
        edit = self._offered.pop(identifier, None)
        if edit is not None and self._model.predictor is not None:
            self._model.predictor.dismiss(edit)

    def skip(self, identifier: str) -> None:
        """Another edit is wanted before the document changes."""
        edit = self._offered.get(identifier)
        if edit is not None and self._model.predictor is not None:
            self._model.predictor.skip(edit)

    def was_shown(self, params: Any) -> None:
        """An edit is on the screen, or another document is looked at; neither changes anything."""

    async def _predict(self, question: _Question, params: InlineEditParams) -> Edit | None:
        marked = [] if params.context is None else params.context.diagnostics or []
        lines = tuple(sorted({mark.range.start.line for mark in marked}))
        while True:
            predictor = await self._model.predicting()
            if predictor is None or self._open_question is not question:
                return None
            try:
                return await asyncio.wrap_future(
                    predictor.update(question.document.whole(params.position), lines)
                )
            except SessionError as error:
                self._model.fail_edits(error)
            except asyncio.CancelledError:  # another question, a change, or another predictor
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    if self._open_question is question:
                        self._open_question = None
                        predictor.pause()
                    raise

    def _offer(self, document: OpenDocument, edit: Edit) -> InlineEdit:
        """Returns an edit in the editor's terms, without a line end that both texts end with."""
        identifier = uuid4().hex
        self._offered[identifier] = edit
        while len(self._offered) > _N_OFFERED:
            self._offered.popitem(last=False)
        self._latest = (document, document.version, edit)
        text, old = edit.text, document.text[edit.start : edit.end]
        n_end = _n_end(old)
        if n_end and n_end == _n_end(text):
            old, text = old[:-n_end], text[:-n_end]
        start = document.position(edit.start)
        changes = [
            types.TextEdit(
                types.Range(_behind(start, old[: part.start]), _behind(start, old[: part.end])),
                part.text,
            )
            for part in replacements(old, text)
        ]
        place = types.Range(start, _behind(start, old))
        command = types.Command("Accept the edit", ACCEPT_EDIT, arguments=[identifier])
        edited = EditedDocument(document.uri, document.version)
        return InlineEdit(text, place, edited, command, changes)


def _behind(start: types.Position, text: str) -> types.Position:
    """Returns where a text ends that begins at a position."""
    *whole, last = LINE_END.split(to_units(text))
    column = len(last) if whole else start.character + len(last)
    return types.Position(start.line + len(whole), column)


def _n_end(text: str) -> int:
    """Returns the characters of the line end that a text ends with."""
    return 2 if text.endswith("\r\n") else int(text.endswith(("\n", "\r")))
