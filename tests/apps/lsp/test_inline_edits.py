"""The next edit over a real server, asked as Neovim's plug-ins for Copilot ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgedec
from edgedec.autocomplete import Document
from edgedec.autocomplete.edits import EditConfig, EditPredictor

from .conftest import Editor, Message, span

pytestmark = pytest.mark.slow

BEFORE = "def hello(name):\n    return 'Hello ' + name\n\nprint(hello('Ann'))\n"
NOW = BEFORE.replace("hello", "greet", 1)
CURSOR = 0


@pytest.fixture(scope="module")
def editor(smollm2_bundle: Path) -> Iterator[Editor]:
    editor = Editor(str(smollm2_bundle))
    editor.begin(options={"min_edit_probability": 0})
    editor.wait_until_loaded()
    yield editor
    assert editor.end() == 0


@pytest.fixture(scope="module")
def expected(smollm2_bundle: Path) -> str:
    """The text after the edit that SmolLM2 predicts. It is not a sensible one."""
    with (
        edgedec.load(smollm2_bundle) as engine,
        EditPredictor(engine, EditConfig(min_probability=0)) as predictor,
    ):
        predictor.see(Document(BEFORE, 0, "a.py"))
        edit = predictor.update(Document(NOW, CURSOR, "a.py")).result()
    assert edit is not None
    return edit.applied(NOW)


def ask(editor: Editor, uri: str, version: int | None = 3, **more: Any) -> int:
    params = {
        "textDocument": {"uri": uri, "version": version},
        "position": {"line": 0, "character": 0},
        **more,
    }
    return editor.ask("textDocument/copilotInlineEdit", params)


def rename(editor: Editor, uri: str) -> None:
    for version, start, end, text in ((2, 4, 9, ""), (3, 4, 4, "greet")):
        document = {"uri": uri, "version": version}
        changes = [{"range": span(0, start, end), "text": text}]
        editor.notify(
            "textDocument/didChange", {"textDocument": document, "contentChanges": changes}
        )


def applied(text: str, edit: Message) -> str:
    """As an editor applies it, to a text of characters that UTF-16 writes as one unit."""
    lines = text.splitlines(keepends=True)
    start, end = (
        sum(map(len, lines[: at["line"]])) + at["character"]
        for at in (edit["range"]["start"], edit["range"]["end"])
    )
    return text[:start] + edit["text"] + text[end:]


def test_the_edit_of_the_predictor_is_offered(editor: Editor, expected: str) -> None:
    uri = editor.open(BEFORE, "file:///a.py")
    rename(editor, uri)
    (edit,) = editor.reply(ask(editor, uri, context={"triggerKind": 2}))["result"]["edits"]
    assert applied(NOW, edit) == expected
    assert edit["textDocument"] == {"uri": uri, "version": 3}
    editor.notify("textDocument/didShowInlineEdit", {"item": {"command": edit["command"]}})
    asked = {"command": "edgedec.dismissEdit", "arguments": edit["command"]["arguments"]}
    assert editor.request("workspace/executeCommand", asked) is None
    assert editor.reply(ask(editor, uri))["result"]["edits"] == []


@pytest.mark.parametrize(
    "more",
    [
        {"version": 2},  # a state that is past
        {"position": {"line": 9, "character": 0}},
        {"uri": "file:///never-opened"},
    ],
)
def test_what_makes_no_sense_by_now_is_answered_empty(
    editor: Editor, more: Message, expected: str
) -> None:
    uri = editor.open(BEFORE, "file:///a.py")
    rename(editor, uri)
    assert editor.reply(ask(editor, **{"uri": uri, **more}))["result"] == {"edits": []}


def test_a_key_ends_a_prediction(editor: Editor) -> None:
    uri = editor.open(BEFORE, "file:///key/a.py")
    rename(editor, uri)
    number = ask(editor, uri)
    editor.change(uri, {"range": span(3, 0, 0), "text": "x"})
    assert editor.reply(number)["result"] == {"edits": []}


def test_a_request_is_cancelled(editor: Editor) -> None:
    uri = editor.open(BEFORE, "file:///cancelled/a.py")
    rename(editor, uri)
    number = ask(editor, uri)
    editor.notify("$/cancelRequest", {"id": number})
    assert editor.reply(number).get("error", {}).get("code") == -32800
    assert "edits" in editor.reply(ask(editor, uri))["result"]


def test_a_request_without_a_position_is_refused(editor: Editor) -> None:
    asked = editor.ask("textDocument/copilotInlineEdit", {"textDocument": {"uri": "file:///a"}})
    assert "position" in editor.reply(asked)["error"]["message"]


def test_edits_can_be_turned_off(smollm2_bundle: Path) -> None:
    editor = Editor(str(smollm2_bundle))
    editor.begin(options={"min_edit_probability": 0, "edits": False})
    editor.wait_until_loaded()
    uri = editor.open(BEFORE, "file:///a.py")
    rename(editor, uri)
    assert editor.reply(ask(editor, uri))["result"] == {"edits": []}
    assert editor.end() == 0
