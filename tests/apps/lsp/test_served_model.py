"""A model that goes from one autocompleter to the next while the first is at work."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pygls")

from lsprotocol import types

from edgedec.apps.lsp.served_model import ServedModel
from edgedec.apps.lsp.server import EdgedecServer
from edgedec.apps.lsp.session import EditorSession
from edgedec.apps.lsp.settings import ServerSettings
from edgedec.apps.lsp.window import EditorWindow
from edgedec.autocomplete import Autocompleter, Document
from edgedec.runtime.backends import running_passes

pytestmark = pytest.mark.slow


@pytest.fixture
def slow_to_close(monkeypatch: pytest.MonkeyPatch) -> None:
    close = Autocompleter.close

    def slow(self: Autocompleter) -> None:
        time.sleep(0.3)
        close(self)

    monkeypatch.setattr(Autocompleter, "close", slow)


@pytest.mark.usefixtures("slow_to_close")
@pytest.mark.parametrize("ends_soon", [True, False])
def test_one_engine_never_has_two_completers(smollm2_bundle: Path, ends_soon: bool) -> None:
    assert asyncio.run(_changes_settings(smollm2_bundle, ends_soon)) == []


async def _changes_settings(bundle: Path, ends_soon: bool) -> list[str]:
    """Returns the errors shown where settings change within a pass, and the model ends then."""
    shown: list[str] = []
    server = EdgedecServer(ServerSettings(), "0")
    model = ServedModel(_Window(server, shown))
    model.want(ServerSettings(bundle=str(bundle)), [])
    while (first := model.completer) is None:
        await asyncio.sleep(0.01)
    text = "Words that were never read. " * 60
    first.update(Document(text, len(text)))
    other = ServerSettings(bundle=str(bundle)).changed_by({"max_new_tokens": 3})
    model.want(other, [])
    while model.completer is first:
        await asyncio.sleep(0.001)
    assert model.completer is None
    while not ends_soon and model.completer is None:
        await asyncio.sleep(0.001)
    if model.completer is not None:
        offer = await asyncio.wrap_future(model.completer.update(Document(text, len(text))))
        assert offer is not None
    await model.close()
    return shown


@pytest.mark.usefixtures("slow_to_close")
@pytest.mark.parametrize("is_asked_first", [True, False])
def test_a_question_is_answered_by_the_completer_that_takes_over(
    smollm2_bundle: Path, is_asked_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered = asyncio.run(_asks_within_a_change(smollm2_bundle, is_asked_first, monkeypatch))
    assert offered == [" 5"]


def _hold_passes(completer: Autocompleter, patch: pytest.MonkeyPatch) -> None:
    """Has passes of ``completer`` begin and compute nothing until something ends them."""
    begin, end_passes, ended = running_passes.begin, running_passes.end_passes, threading.Event()

    def held(run: running_passes.Endable) -> None:
        begin(run)
        if threading.get_ident() == completer._thread.ident:
            assert ended.wait(60)

    def ending(least_s: float = 0.0, thread: int | None = None) -> int:
        n_ended = end_passes(least_s, thread)
        if n_ended:
            ended.set()
        return n_ended

    patch.setattr(running_passes, "begin", held)
    patch.setattr(running_passes, "end_passes", ending)


async def _asks_within_a_change(
    bundle: Path, is_asked_first: bool, patch: pytest.MonkeyPatch
) -> list[str]:
    """Returns what is offered where a question meets a change of the number of tokens to one.

    The first completer cannot get to the end of its answer before the other takes over.
    """
    server = EdgedecServer(ServerSettings(), "0")
    model = ServedModel(_Window(server, []))
    session = EditorSession(ServerSettings(bundle=str(bundle)), model, _Window(server, []))
    session.configure({"min_probability": 0, "max_new_tokens": 9}, [])
    while (first := model.completer) is None:
        await asyncio.sleep(0.01)
    _hold_passes(first, patch)
    text = "Words that were never read. " * 60 + "1, 2, 3, 4,"
    item = types.TextDocumentItem("file:///a.txt", "plaintext", 1, text)
    session.open(types.DidOpenTextDocumentParams(item))
    place = types.Position(0, len(text))
    context = types.InlineCompletionContext(types.InlineCompletionTriggerKind.Automatic)
    params = types.InlineCompletionParams(context, types.TextDocumentIdentifier(item.uri), place)
    asked = [asyncio.create_task(session.inline_completion(params))] * is_asked_first
    await asyncio.sleep(0)  # what was asked is asked of the first
    session.configure({"min_probability": 0, "max_new_tokens": 2}, [])
    while model.completer is first:
        await asyncio.sleep(0.001)
    asked = asked or [asyncio.create_task(session.inline_completion(params))]
    found = await asked[0]
    await model.close()
    return [str(one.insert_text) for one in found.items]


class _Window(EditorWindow):
    """Keeps what it would show, for there is no editor."""

    def __init__(self, server: EdgedecServer, shown: list[str]) -> None:
        super().__init__(server)
        self._shown = shown

    def progress(self, title: str) -> Any:
        return _NoProgress()

    def _show(self, kind: Any, text: str) -> None:
        self._shown.append(text)


class _NoProgress:
    def report(self, done: int, total: int) -> None: ...
    def end(self) -> None: ...
