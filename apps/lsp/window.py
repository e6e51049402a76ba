"""What the person at the editor sees: messages, and progress while a bundle loads."""

from __future__ import annotations

import uuid
from typing import Any

from lsprotocol import types
from pygls.capabilities import get_capability
from pygls.lsp.server import LanguageServer


class EditorWindow:
    """Says things in the editor's window."""

    def __init__(self, server: LanguageServer) -> None:
        self._server = server

    def error(self, error: BaseException) -> None:
        """Shows an error on one line."""
        self._show(types.MessageType.Error, " ".join(f"edgedec: {error}".split()))

    def note(self, text: str) -> None:
        """Shows a remark."""
        self._show(types.MessageType.Info, f"edgedec: {text}")

    def progress(self, title: str) -> EditorProgress:
        """Returns a progress that the editor may show, begun."""
        return EditorProgress(self._server, title)

    def _show(self, kind: types.MessageType, text: str) -> None:
        self._server.window_show_message(types.ShowMessageParams(kind, text))


class EditorProgress:
    """Work in progress, once the editor has agreed to show it; nothing where it does not."""

    def __init__(self, server: LanguageServer, title: str) -> None:
        self._progress = server.work_done_progress
        self._title = title
        self._token = str(uuid.uuid4())
        self._is_shown = self._is_ended = False
        if get_capability(server.client_capabilities, "window.work_done_progress"):
            self._progress.create(self._token, self._begin)

    def report(self, done: int, total: int) -> None:
        """Shows how much is done, of how much."""
        if self._is_shown:
            value = types.WorkDoneProgressReport(percentage=100 * done // max(total, 1))
            self._progress.report(self._token, value)

    def end(self) -> None:
        """Takes it away."""
        self._is_ended = True
        if self._is_shown:
            self._progress.end(self._token, types.WorkDoneProgressEnd())

    def _begin(self, result: Any) -> None:
        if not self._is_ended:
            self._is_shown = True
            self._progress.begin(
                self._token, types.WorkDoneProgressBegin(self._title, percentage=0)
            )
