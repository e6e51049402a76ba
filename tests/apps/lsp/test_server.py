"""A real server over a real model, asked as editors ask."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import INVOKED, Editor, at, span

pytestmark = pytest.mark.slow

SUN = "The sun rises in the east and sets in the"


def inline(editor: Editor, uri: str, line: int, character: int) -> list[str]:
    found = editor.request("textDocument/inlineCompletion", at(uri, line, character))
    return [item["insertText"] for item in found["items"]]


@pytest.fixture
def west(editor: Editor) -> list[str]:
    """What the model goes on with behind `SUN`."""
    offered = inline(editor, editor.open(SUN, "file:///sun.txt"), 0, len(SUN))
    assert offered[0].startswith(" west")
    return offered


def test_the_next_words_are_offered_at_the_cursor(editor: Editor) -> None:
    uri = editor.open(SUN)
    found = editor.request("textDocument/inlineCompletion", at(uri, 0, len(SUN)))
    (item,) = found["items"]
    assert item["insertText"].startswith(" west")
    assert item["range"] == span(0, len(SUN), len(SUN))


def test_alternatives_come_when_somebody_asks(editor: Editor, west: list[str]) -> None:
    uri = editor.open(SUN)
    found = editor.request("textDocument/inlineCompletion", at(uri, 0, len(SUN), INVOKED))
    texts = [item["insertText"] for item in found["items"]]
    assert texts[0] == west[0]
    assert len(set(texts)) == len(texts) > 1
    assert all(item["range"] == span(0, len(SUN), len(SUN)) for item in found["items"])
    assert inline(editor, uri, 0, len(SUN)) == west


def test_alternatives_that_nobody_waits_for(editor: Editor, west: list[str]) -> None:
    uri = editor.open(SUN)
    number = editor.ask("textDocument/inlineCompletion", at(uri, 0, len(SUN), INVOKED))
    assert inline(editor, uri, 0, len(SUN)) == west
    assert len(editor.reply(number)["result"]["items"]) <= 1


def test_keys_arrive_one_by_one(editor: Editor, west: list[str]) -> None:
    uri = editor.open("")
    for i, sign in enumerate(SUN):
        editor.change(uri, {"range": span(0, i, i), "text": sign})
    assert inline(editor, uri, 0, len(SUN)) == west
    editor.change(uri, {"range": span(0, len(SUN), len(SUN)), "text": " w"})
    assert inline(editor, uri, 0, len(SUN) + 2) == [west[0].removeprefix(" w")]


@pytest.mark.parametrize(
    ("before", "n_units"),
    [
        ("🙂 ", 3),
        ("e\u0301 ", 3),
        ("👩‍👩‍👧", 8),
        ("日本 ", 3),
        ("\ud83d ", 2),
        ("\x0b\u2028\x85", 3),
    ],
    ids=ascii,
)
def test_positions_count_utf_16_units(
    editor: Editor, west: list[str], before: str, n_units: int
) -> None:
    uri = editor.open(f"{before}The Xun rises\r\n{before}in the\r{before}east Ynd sets in the\n")
    editor.change(
        uri,
        {"range": span(0, n_units + 4, n_units + 5), "text": "s"},
        {"range": span(2, n_units + 5, n_units + 6), "text": "a"},
        {"range": {"start": {"line": 1, "character": n_units + 6},
                   "end": {"line": 2, "character": n_units}}, "text": " "},
        {"range": {"start": {"line": 0, "character": n_units + 13},
                   "end": {"line": 1, "character": n_units}}, "text": " "},
    )  # fmt: skip
    editor.change(uri, {"range": span(0, 0, n_units), "text": ""})
    assert inline(editor, uri, 0, len(SUN)) == west


def test_halves_of_a_character_arrive_alone(editor: Editor, west: list[str]) -> None:
    uri = editor.open("\ud83d" + SUN)
    editor.change(uri, {"range": span(0, 1, 1), "text": "\ude42"})
    assert len(inline(editor, uri, 0, 2 + len(SUN))) <= 1
    editor.change(uri, {"range": span(0, 1, 2), "text": ""})
    editor.change(uri, {"range": span(0, 0, 1), "text": ""})
    assert inline(editor, uri, 0, len(SUN)) == west


def test_whole_documents_arrive_anew(editor: Editor, west: list[str]) -> None:
    uri = editor.open("other")
    editor.change(uri, {"text": "x\n" + SUN})
    assert inline(editor, uri, 1, len(SUN)) == west


def test_documents_are_kept_apart(editor: Editor, west: list[str]) -> None:
    one, two = editor.open(SUN, "file:///1/x.py"), editor.open("1, 2, 3, 4,", "file:///2/x.py")
    for _ in range(2):
        assert inline(editor, one, 0, len(SUN)) == west
        assert inline(editor, two, 0, 11)[0].startswith(" 5")
    editor.notify("textDocument/didClose", {"textDocument": {"uri": one}})
    assert inline(editor, one, 0, len(SUN)) == []
    assert inline(editor, "file:///never-opened", 0, 0) == []
    editor.change("file:///never-opened", {"text": "x"})
    assert inline(editor, two, 0, 11)[0].startswith(" 5")


def test_what_another_document_says_is_known(
    start: Callable[..., Editor], smollm2_bundle: Path
) -> None:
    editor = start(str(smollm2_bundle), "-n", "12", "--min-probability", "0")
    editor.begin()
    editor.wait_until_loaded()
    asked = "The lighthouse keeper is called"
    one = editor.open(asked, "file:///a.txt")
    assert "Zanzibar" not in "".join(inline(editor, one, 0, len(asked)))
    editor.open("The lighthouse keeper is called Zanzibar Smith.\n", "file:///b.txt")
    two = editor.open(asked, "file:///c.txt")
    assert inline(editor, two, 0, len(asked))[0].startswith(" Zanzibar Smith")


def test_a_cursor_outside_the_document(editor: Editor, west: list[str]) -> None:
    uri = editor.open(SUN)
    assert inline(editor, uri, 1, 0) == []
    found = editor.request("textDocument/inlineCompletion", at(uri, 0, 10_000))
    assert [item["insertText"] for item in found["items"]] == west
    assert found["items"][0]["range"] == span(0, len(SUN), len(SUN))
    assert inline(editor, editor.open(""), 0, 0) == []


def test_what_is_stale_is_answered_empty(editor: Editor, west: list[str]) -> None:
    uri = editor.open(SUN)
    old = editor.ask("textDocument/inlineCompletion", at(uri, 0, 9))
    new = editor.ask("textDocument/inlineCompletion", at(uri, 0, len(SUN)))
    assert editor.reply(old)["result"] == {"items": []}
    assert [i["insertText"] for i in editor.reply(new)["result"]["items"]] == west
    long = "Some words that were not read before. " * 40
    uri = editor.open(long)
    old = editor.ask("textDocument/inlineCompletion", at(uri, 0, len(long)))
    editor.change(uri, {"text": SUN})
    assert editor.reply(old)["result"] == {"items": []}
    assert inline(editor, uri, 0, len(SUN)) == west


def test_requests_are_cancelled(editor: Editor, west: list[str]) -> None:
    long = "Words, many words, and none was seen so far. " * 40
    uri = editor.open(long)
    number = editor.ask("textDocument/inlineCompletion", at(uri, 0, len(long)))
    editor.notify("$/cancelRequest", {"id": number})
    assert editor.reply(number)["error"]["code"] == -32800
    editor.notify("$/cancelRequest", {"id": 987654})
    assert inline(editor, editor.open(SUN), 0, len(SUN)) == west


def test_bytes_that_are_no_utf_8_are_replaced(editor: Editor, west: list[str]) -> None:
    uri = editor.open("")
    change = {"textDocument": {"uri": uri, "version": 2}, "contentChanges": [{"text": "?" + SUN}]}
    message = {"jsonrpc": "2.0", "method": "textDocument/didChange", "params": change}
    editor.send_raw(json.dumps(message).encode().replace(b"?", b"\xff"))
    editor.change(uri, {"range": span(0, 0, 1), "text": ""})
    assert inline(editor, uri, 0, len(SUN)) == west


@pytest.mark.parametrize(
    "body",
    [
        *(b"{", b"[]", b"7", b"{}", b'{"jsonrpc": "2.0"}', b"[" * 100_000, b"\xff\xfe", b"null"),
        b'{"jsonrpc": "2.0", "method": "x", "id": {}}',
        b'{"jsonrpc": "2.0", "result": null, "id": [1]}',
        b'{"jsonrpc": "2.0", "result": null, "id": 987654}',
        b'{"jsonrpc": "2.0", "error": 1, "id": 1}',
        b'{"jsonrpc": "2.0", "method": 7}',
        b'{"method": "shutdown"}',
    ],
)
def test_messages_that_make_no_sense_are_passed_over(
    editor: Editor, west: list[str], body: bytes
) -> None:
    editor.send_raw(body)
    assert inline(editor, "file:///sun.txt", 0, len(SUN)) == west


@pytest.mark.parametrize("params", [None, {}, {"position": {"line": -1, "character": "a"}}])
def test_requests_that_make_no_sense_are_refused(editor: Editor, params: Any) -> None:
    number = editor.ask("textDocument/inlineCompletion", params)
    assert editor.reply(number)["error"]["code"] == -32602
    number = editor.ask("textDocument/unheardOf", params)
    assert editor.reply(number)["error"]["code"] == -32601
    number = editor.ask(7, params)
    assert "method is 7, expected a text" in editor.reply(number)["error"]["message"]


def test_a_request_that_makes_no_sense_is_reported_why(editor: Editor) -> None:
    params = at("file:///sun.txt", 0, 0) | {"position": {"line": "a", "character": 0}}
    error = editor.reply(editor.ask("textDocument/inlineCompletion", params))["error"]
    assert "expected int @ $.params.position.line" in error["message"]


@pytest.mark.robustness
def test_a_document_of_50_mb(editor: Editor, west: list[str]) -> None:
    uri = editor.open("a line of some words\n" * 2_500_000)
    edit = {"range": span(2_000_000, 0, 0), "text": f"\n\n\n\n{SUN}"}
    editor.change(uri, edit)
    assert inline(editor, uri, 2_000_004, len(SUN))
    editor.notify("textDocument/didClose", {"textDocument": {"uri": uri}})


def test_an_item_selected_in_a_menu_is_extended(editor: Editor, west: list[str]) -> None:
    """Source: LSP 3.18, SelectedCompletionInfo: the item with the range that it replaces."""
    begun = SUN[: -len("the")]
    typed = begun + "th"
    uri = editor.open(typed + "\nMore.")
    place = span(0, len(begun), len(typed))
    asked = at(uri, 0, len(typed))
    asked["context"]["selectedCompletionInfo"] = {"range": place, "text": "the"}
    (item,) = editor.request("textDocument/inlineCompletion", asked)["items"]
    assert item["range"] == place
    assert item["insertText"] == "the" + west[0]


def test_cells_of_a_notebook_are_documents(editor: Editor, west: list[str]) -> None:
    uris = [f"vscode-notebook-cell:/a.ipynb#{i}" for i in range(3)]
    items = [
        {"uri": uri, "languageId": "python", "version": 1, "text": text}
        for uri, text in zip(uris, (SUN, "x = 1", SUN), strict=True)
    ]
    cells = [{"kind": 2, "document": uri} for uri in uris[:2]]
    book = {"uri": "file:///a.ipynb", "notebookType": "jupyter-notebook", "version": 1}
    opened = {"notebookDocument": {**book, "cells": cells}, "cellTextDocuments": items[:2]}
    editor.notify("notebookDocument/didOpen", opened)
    assert inline(editor, uris[0], 0, len(SUN)) == west
    text = {"document": {"uri": uris[1], "version": 2}, "changes": [{"text": SUN}]}
    added = {"array": {"start": 2, "deleteCount": 0, "cells": []}, "didOpen": [items[2]],
             "didClose": [{"uri": uris[0]}]}  # fmt: skip
    change = {"cells": {"structure": added, "textContent": [text]}}
    editor.notify("notebookDocument/didChange", {"notebookDocument": book, "change": change})
    assert inline(editor, uris[0], 0, len(SUN)) == []
    assert inline(editor, uris[1], 0, len(SUN)) == west
    assert inline(editor, uris[2], 0, len(SUN)) == west
    closed = [{"uri": uri} for uri in uris[1:]]
    editor.notify(
        "notebookDocument/didClose", {"notebookDocument": book, "cellTextDocuments": closed}
    )
    assert inline(editor, uris[1], 0, len(SUN)) == []
