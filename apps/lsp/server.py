"""The language server: which message goes where, and how it begins and ends."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

from cattrs import transform_error
from lsprotocol import types
from pygls.capabilities import get_capability
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, lsp_method
from pygls.uris import to_fs_path

from edgedec.apps.lsp.inline_edit_types import (
    ACCEPT_EDIT,
    DID_FOCUS,
    DID_SHOW_INLINE_EDIT,
    DISMISS_EDIT,
    INLINE_EDIT,
    SKIP_EDIT,
    InlineEditRequest,
)
from edgedec.apps.lsp.served_model import ServedModel
from edgedec.apps.lsp.session import EditorSession
from edgedec.apps.lsp.settings import SECTION, ServerSettings
from edgedec.apps.lsp.transport import envelope_fault, read_messages
from edgedec.apps.lsp.window import EditorWindow
from edgedec.models.errors import ConfigError
from edgedec.system.processes import is_running

_TRIGGERS = (" ", ".", "(", "[", "{", ",", "=", ":", '"', "'", "/", "<", "\n")
"""Signs after which editors ask for ordinary completion, besides letters."""

_PATIENCE_S = 5.0
"""How long the editor's answer about settings is waited for before the bundle is loaded."""

_INVALID, _INVALID_REQUEST, _NOT_INITIALIZED = -32602, -32600, -32002

_WATCH_S = 2.0
"""How often it is looked whether the editor's process is still there."""

_log = logging.getLogger(__name__)


class _Protocol(LanguageServerProtocol):
    """pygls' protocol, but for documents, which are kept in UTF-16 units, and for how it ends."""

    _server: EdgedecServer

    @lsp_method(types.INITIALIZE)
    def lsp_initialize(
        self, params: types.InitializeParams
    ) -> Generator[Any, Any, types.InitializeResult]:
        if params.capabilities.general is not None:
            params.capabilities.general.position_encodings = None  # UTF-16 is every editor's
        return (yield from super().lsp_initialize(params))

    def structure_message(self, data: dict[str, Any]) -> Any:
        """Returns a message by its class, those of editors' own methods included."""
        if data.get("method") == INLINE_EDIT and "id" in data:
            return self._converter.structure(data, InlineEditRequest)
        return super().structure_message(data)

    @lsp_method(types.TEXT_DOCUMENT_DID_OPEN)
    def lsp_text_document__did_open(self, params: types.DidOpenTextDocumentParams) -> None:
        self._server.session.open(params)

    @lsp_method(types.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: types.DidChangeTextDocumentParams) -> None:
        self._server.session.change(params)

    @lsp_method(types.TEXT_DOCUMENT_DID_CLOSE)
    def lsp_text_document__did_close(self, params: types.DidCloseTextDocumentParams) -> None:
        self._server.session.close(params)

    @lsp_method(types.NOTEBOOK_DOCUMENT_DID_OPEN)
    def lsp_notebook_document__did_open(self, params: types.DidOpenNotebookDocumentParams) -> None:
        self._server.session.open_notebook(params)

    @lsp_method(types.NOTEBOOK_DOCUMENT_DID_CHANGE)
    def lsp_notebook_document__did_change(
        self, params: types.DidChangeNotebookDocumentParams
    ) -> None:
        self._server.session.change_notebook(params)

    @lsp_method(types.NOTEBOOK_DOCUMENT_DID_CLOSE)
    def lsp_notebook_document__did_close(
        self, params: types.DidCloseNotebookDocumentParams
    ) -> None:
        self._server.session.close_notebook(params)

    @lsp_method(types.EXIT)
    def lsp_exit(self, *args: Any) -> Generator[Any, Any, None]:
        self._server.has_exited = True
        yield from ()


class EdgedecServer(LanguageServer):
    """A language server over one editor's messages.

    has_exited: the editor said so. is_shut_down: it said before that it would.
    """

    def __init__(self, settings: ServerSettings, version: str) -> None:
        cells = types.NotebookDocumentFilterWithNotebook(
            notebook="*", cells=[types.NotebookCellLanguage("*")]
        )
        super().__init__(
            "edgedec",
            version,
            protocol_cls=_Protocol,
            notebook_document_sync=types.NotebookDocumentSyncOptions([cells]),
        )
        self._is_begun = False
        self.has_exited = self.is_shut_down = False
        self._window = EditorWindow(self)
        self._model = ServedModel(self._window)
        self.session = EditorSession(settings, self._model, self._window)
        self._complaint: ConfigError | None = None
        self._reader: asyncio.StreamReader | None = None
        self._watching: asyncio.Task[None] | None = None
        inline = types.InlineCompletionOptions(work_done_progress=False)
        self._on(types.INITIALIZE, self._initialize)
        self._on(types.INITIALIZED, self._initialized)
        self._on(types.WORKSPACE_DID_CHANGE_CONFIGURATION, self._configure)
        self._on(types.TEXT_DOCUMENT_INLINE_COMPLETION, self.session.inline_completion, inline)
        self._on(INLINE_EDIT, self.session.edits.inline_edit)
        for noted in (DID_SHOW_INLINE_EDIT, DID_FOCUS):
            self._on(noted, self.session.edits.was_shown)
        self.command(ACCEPT_EDIT)(partial(self.session.edits.accept))
        self.command(DISMISS_EDIT)(partial(self.session.edits.dismiss))
        self.command(SKIP_EDIT)(partial(self.session.edits.skip))
        self._on(types.SHUTDOWN, self._shut_down)

    async def serve(self, reader: asyncio.StreamReader, writer: Any) -> int:
        """Answers messages until the editor ends, or is gone; returns the exit code."""
        self.protocol.set_writer(writer)
        self._reader = reader
        try:
            async for message in read_messages(reader):
                self._handle(message)
                if self.has_exited:
                    break
                # What this message began comes first: it is about the text as it is now.
                await asyncio.sleep(0)
        finally:
            if self._watching is not None:
                self._watching.cancel()
            await self._model.close()
        return int(self.has_exited and not self.is_shut_down)

    def _handle(self, message: Any) -> None:
        """Hands a message to pygls; one that makes no sense is refused and changes nothing."""
        if fault := envelope_fault(message):
            self._refuse(message, fault)
            return
        if out_of_turn := self._out_of_turn(message.get("method")):
            self._refuse(message, *out_of_turn)
            return
        try:
            structured = self.protocol.structure_message(message)
        except Exception as error:
            self._refuse(message, _reason(error))
            return
        try:
            self.protocol.handle_message(structured)
        except Exception as error:  # requests have an answer by now, so it was none
            _log.warning("an answer of the editor makes no sense: %s", error)

    def _out_of_turn(self, method: str | None) -> tuple[str, int] | None:
        """Returns why a message is refused now, and the protocol's error code; None if it is not.

        Source: the Language Server Protocol 3.18, lifecycle messages.
        """
        if method is None or method == types.EXIT:
            return None
        if self.is_shut_down:
            return "it came after shutdown: only exit may follow", _INVALID_REQUEST
        if method == types.INITIALIZE:
            if self._is_begun:
                return "initialize came before: it may be sent once", _INVALID_REQUEST
            self._is_begun = True
        elif not self._is_begun:
            return "it came before initialize", _NOT_INITIALIZED
        return None

    async def _watch(self, editor: int) -> None:
        """Ends reading once the process of the editor is gone, however it ended."""
        while is_running(editor):
            await asyncio.sleep(_WATCH_S)
        if self._reader is not None:
            self._reader.feed_eof()

    def _refuse(self, message: Any, reason: str, code: int = _INVALID) -> None:
        """Answers a request that it makes no sense; of anything else, says so in the log."""
        known = message if isinstance(message, dict) else {}
        if "method" not in known or not isinstance(known.get("id"), int | str):
            kind = known.get("method", "a message")
            _log.warning("%s of the editor makes no sense: %s", kind, reason)
            return
        error = {"code": code, "message": f"the request makes no sense: {reason}"}
        body = json.dumps({"jsonrpc": "2.0", "id": known["id"], "error": error})
        assert self.protocol.writer is not None
        self.protocol.writer.write(f"Content-Length: {len(body)}\r\n\r\n{body}".encode())

    def _on(
        self, method: str, answer: Callable[[Any], Any | Awaitable[Any]], options: Any = None
    ) -> None:
        self.feature(method, options)(partial(answer))  # a method takes no attributes

    def _initialize(self, params: types.InitializeParams) -> None:
        editor = params.process_id
        if editor is not None and is_running(editor):  # elsewhere, its number says nothing here
            self._watching = asyncio.get_running_loop().create_task(self._watch(editor))
        try:
            self.session.begin(params.initialization_options)
        except ConfigError as error:
            self._complaint = error
        is_wanted = self.session.settings.completion
        if is_wanted is None:
            is_wanted = not get_capability(params.capabilities, "text_document.inline_completion")
        if is_wanted:
            options = types.CompletionOptions(trigger_characters=_TRIGGERS)
            self._on(types.TEXT_DOCUMENT_COMPLETION, self.session.completion, options)

    async def _initialized(self, params: types.InitializedParams) -> None:
        if self._complaint is not None:
            self._window.error(self._complaint)
        if get_capability(
            self.client_capabilities, "workspace.did_change_configuration.dynamic_registration"
        ):
            registration = types.Registration(
                "settings",
                types.WORKSPACE_DID_CHANGE_CONFIGURATION,
                types.DidChangeConfigurationRegistrationOptions(section=SECTION),
            )
            self.client_register_capability(types.RegistrationParams([registration]))
        self.session.configure(await self._asked_settings(), self._roots())

    async def _configure(self, params: types.DidChangeConfigurationParams) -> None:
        settings = params.settings or await self._asked_settings()
        self.session.configure(settings, self._roots())

    async def _asked_settings(self) -> object:
        """Returns the settings that the editor has, None if it does not answer."""
        if not get_capability(self.client_capabilities, "workspace.configuration"):
            return None
        items = [types.ConfigurationItem(section=SECTION)]
        answer = self.workspace_configuration_async(types.ConfigurationParams(items))
        try:
            settings = await asyncio.wait_for(answer, _PATIENCE_S)
        except Exception:  # an editor that offers this and then does not answer has no settings
            return None
        return settings[0] if settings else None

    def _roots(self) -> list[Path]:
        uris = [*self.workspace.folders, self.workspace.root_uri or ""]
        return [Path(path) for uri in uris if uri and (path := to_fs_path(uri))]

    async def _shut_down(self, params: Any) -> None:
        self.is_shut_down = True
        await self._model.close()


def _reason(error: Exception) -> str:
    """Returns what is wrong with the fields of a message that pygls could not read."""
    return "; ".join(transform_error(error.__cause__ or error)[:3])
