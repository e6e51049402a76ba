"""One editor's session: its documents and settings, and what is offered to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lsprotocol import types

from edgedec.apps.lsp.documents import OpenDocument
from edgedec.apps.lsp.inline_edits import InlineEdits
from edgedec.apps.lsp.served_model import ServedModel
from edgedec.apps.lsp.settings import ServerSettings
from edgedec.apps.lsp.text_buffer import TextBuffer
from edgedec.apps.lsp.window import EditorWindow
from edgedec.autocomplete import Autocompleter, Offer
from edgedec.models.errors import ConfigError, SessionError


@dataclass(frozen=True, eq=False)
class _Question:
    """What an editor asked of a document; equal to itself only."""

    document: OpenDocument


class EditorSession:
    """What one editor has open, and the answers to what it asks. Lives in the event loop.

    A change of a document, or another question, makes an unanswered one stale: its answer is empty.
    """

    def __init__(self, settings: ServerSettings, model: ServedModel, window: EditorWindow) -> None:
        self._base = self.settings = settings
        self._model = model
        self._window = window
        self._documents: dict[str, OpenDocument] = {}
        self._is_configured = False
        self._newest: _Question | None = None  # None: the document has changed since
        self._shown_to: Autocompleter | None = None
        self.edits = InlineEdits(self._documents, model)

    def begin(self, options: object) -> None:
        """Takes the settings with which the editor began; complains later, in `configure`."""
        self._base = self.settings = self._base.changed_by(options)

    def configure(self, values: object, roots: Sequence[Path]) -> None:
        """Has the model follow the editor's settings, which stand above those it began with."""
        try:
            self.settings = self._base.changed_by(values)
        except ConfigError as error:
            self._window.error(error)
            if self._is_configured:
                return
        self._is_configured = True
        self._model.want(self.settings, roots)

    def open(self, params: types.DidOpenTextDocumentParams) -> None:
        """A document was opened."""
        self._open(params.text_document)

    def change(self, params: types.DidChangeTextDocumentParams) -> None:
        """A document was changed."""
        self._change(params.text_document, params.content_changes)

    def close(self, params: types.DidCloseTextDocumentParams) -> None:
        """A document was closed."""
        self._close(params.text_document.uri)

    def open_notebook(self, params: types.DidOpenNotebookDocumentParams) -> None:
        """A notebook was opened: each of its cells is a document."""
        for item in params.cell_text_documents:
            self._open(item)

    def change_notebook(self, params: types.DidChangeNotebookDocumentParams) -> None:
        """Cells were added, removed or changed."""
        cells = params.change.cells
        if cells is None:
            return
        if cells.structure is not None:
            for closed in cells.structure.did_close or ():
                self._close(closed.uri)
            for item in cells.structure.did_open or ():
                self._open(item)
        for changed in cells.text_content or ():
            self._change(changed.document, changed.changes)

    def close_notebook(self, params: types.DidCloseNotebookDocumentParams) -> None:
        """A notebook was closed, and its cells with it."""
        for closed in params.cell_text_documents:
            self._close(closed.uri)

    async def inline_completion(
        self, params: types.InlineCompletionParams
    ) -> types.InlineCompletionList:
        """Returns what is on offer at a position, and its alternatives if somebody asked for it."""
        selected = params.context.selected_completion_info
        items = await self._offer(params, selected)
        if items is None:
            return self._inserted(params)
        document, offer = items
        texts = [offer.text]
        if params.context.trigger_kind is types.InlineCompletionTriggerKind.Invoked:
            texts += await self._alternatives_to(offer)
        if selected is not None:  # the protocol wants an extension of the item, at its range
            return types.InlineCompletionList(
                [types.InlineCompletionItem(selected.text + t, range=selected.range) for t in texts]
            )
        end = document.word_before(params.position)[1].end
        place = types.Range(end, end)
        return types.InlineCompletionList(
            [types.InlineCompletionItem(text, range=place) for text in texts]
        )

    def _inserted(self, params: types.InlineCompletionParams) -> types.InlineCompletionList:
        """Returns the edit that was predicted last, if it inserts text at the position."""
        document = self._documents.get(params.text_document.uri)
        if document is None or params.context.selected_completion_info is not None:
            return types.InlineCompletionList([])
        text = self.edits.insertion_at(document, params.position)
        place = types.Range(params.position, params.position)
        return types.InlineCompletionList(
            [] if text is None else [types.InlineCompletionItem(text, range=place)]
        )

    async def completion(self, params: types.CompletionParams) -> types.CompletionList:
        """Returns what is on offer as an item of a menu, which clients filter by the word typed."""
        items = await self._offer(params)
        if items is None:
            return types.CompletionList(is_incomplete=True, items=[])
        document, offer = items
        word, place = document.word_before(params.position)
        text = word + offer.text
        item = types.CompletionItem(
            label=text.strip().partition("\n")[0],
            kind=types.CompletionItemKind.Text,
            detail=f"edgedec, {100 * offer.probability:.0f} %",
            filter_text=text,
            insert_text_format=types.InsertTextFormat.PlainText,
            insert_text_mode=types.InsertTextMode.AsIs,
            text_edit=types.TextEdit(place, text),
        )
        return types.CompletionList(is_incomplete=True, items=[item])

    async def _offer(
        self,
        params: types.CompletionParams | types.InlineCompletionParams,
        selected: types.SelectedCompletionInfo | None = None,
    ) -> tuple[OpenDocument, Offer] | None:
        """Returns what is offered at a position, and in which document; None: nothing, or stale.

        Reads no other message of the editor before it first waits. If settings bring another
        autocompleter meanwhile, that one is asked.

        selected: the item of a menu that is to be taken as accepted.
        """
        self._model.stir()
        self._model.look()
        document = self._documents.get(params.text_document.uri)
        if document is None or not document.has(params.position):
            return None
        question = self._newest = _Question(document)
        while (completer := await self._model.serving()) and question is self._newest:
            document.place = params.position
            self._show_others(completer, document)
            try:
                future = completer.update(
                    document.near(params.position, completer.reach)
                    if selected is None
                    else document.with_selected(selected, completer.reach)
                )
            except SessionError as error:
                self._model.fail(error)
                break
            try:
                offer = await asyncio.wrap_future(future)
            except asyncio.CancelledError:  # something else was asked, or the completer replaced
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    if question is self._newest:
                        completer.pause()
                    raise
            else:
                return None if offer is None else (document, offer)
        return None

    async def _alternatives_to(self, offer: Offer) -> list[str]:
        """Returns other texts for the place of an offer; none if it is stale by then."""
        completer = self._model.completer
        if completer is None or completer.version != offer.version:
            return []
        try:
            alternatives = await asyncio.wrap_future(completer.alternatives())
        except SessionError as error:
            self._model.fail(error)
            return []
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return []
        return [alternative.text for alternative in alternatives if alternative.text != offer.text]

    def _show_others(self, completer: Autocompleter, document: OpenDocument) -> None:
        """Shows the completer other open documents as they are now."""
        is_new = self._shown_to is not completer
        self._shown_to = completer
        for other in self._documents.values():
            if other is not document and (other.is_news or is_new):
                completer.see(other.near(other.place, completer.reach))
                other.is_news = False

    def _open(self, item: types.TextDocumentItem) -> None:
        document = OpenDocument(item.uri, TextBuffer(item.text), version=item.version)
        self._documents[item.uri] = document
        self.edits.see(document)

    def _change(
        self,
        item: types.VersionedTextDocumentIdentifier,
        changes: Sequence[types.TextDocumentContentChangeEvent],
    ) -> None:
        self._model.stir()
        document = self._documents.get(item.uri)
        if document is not None:
            self._make_stale(item.uri)
            self.edits.changing(document, _first_line(changes))
            document.change(changes)
            document.version = item.version

    def _close(self, uri: str) -> None:
        self._make_stale(uri)
        self._documents.pop(uri, None)
        self.edits.forget(uri)
        if self._model.completer is not None:
            self._model.completer.forget(uri)

    def _make_stale(self, uri: str) -> None:
        """Computes no more for what was asked of a document; the next question may go on there."""
        if self._newest is not None and self._newest.document.uri == uri:
            self._newest = None
            if self._model.completer is not None:
                self._model.completer.pause()


def _first_line(changes: Sequence[types.TextDocumentContentChangeEvent]) -> int:
    """Returns the first line that a notification changes."""
    starts = [
        change.range.start.line
        for change in changes
        if isinstance(change, types.TextDocumentContentChangePartial)
    ]
    return min(starts, default=0)
