"""Edits, taken back, at two cursors, in odd files: over a real server whose model knows them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import INVOKED, KNOWING, Editor, Message, at, span

AREA = "def area(width):\n    a = 1\n    return width\n\n\nprint(area(1))\n"
_N = itertools.count()


class Text:
    """A document that an editor has open, as it is on both sides."""

    def __init__(self, editor: Editor, text: str) -> None:
        self.editor, self.text, self.version = editor, text, 1
        self.uri = editor.open(text, f"file:///{next(_N)}/a.py")

    def change(self, *changes: Message) -> None:
        """Makes changes, each to what the one before left."""
        self.version += 1
        for change in changes:
            start, end = (self._offset(change["range"][key]) for key in ("start", "end"))
            self.text = self.text[:start] + change["text"] + self.text[end:]
        document = {"uri": self.uri, "version": self.version}
        params = {"textDocument": document, "contentChanges": changes}
        self.editor.notify("textDocument/didChange", params)

    def replace(self, line: int, start: int, end: int, text: str) -> None:
        self.change({"range": span(line, start, end), "text": text})

    def ask(self, line: int = 0, character: int = 0) -> int:
        params = {
            "textDocument": {"uri": self.uri, "version": self.version},
            "position": {"line": line, "character": character},
        }
        return self.editor.ask("textDocument/copilotInlineEdit", params)

    def edit(self, line: int = 0) -> Message | None:
        """Returns the edit that is on offer."""
        edits: list[Message] = self.editor.reply(self.ask(line))["result"]["edits"]
        return edits[0] if edits else None

    def offered(self, line: int = 0) -> str | None:
        """Returns the text after the edit that is on offer; both forms of it say the same."""
        if (edit := self.edit(line)) is None:
            return None
        whole = self._applied([{"range": edit["range"], "newText": edit["text"]}])
        assert self._applied(edit["changes"]) == whole
        return whole

    def take(self, edit: Message) -> None:
        """Makes an edit as a client of ours does, and says so."""
        changes = [{"range": c["range"], "text": c["newText"]} for c in edit["changes"]]
        self.change(*reversed(changes))
        self.tell("acceptEdit", edit)

    def tell(self, what: str, edit: Message) -> None:
        asked = {"command": f"edgedec.{what}", "arguments": edit["command"]["arguments"]}
        assert self.editor.request("workspace/executeCommand", asked) is None

    def _applied(self, changes: list[Message]) -> str:
        text = self.text
        for change in reversed(changes):
            start, end = (self._offset(change["range"][key]) for key in ("start", "end"))
            text = text[:start] + change["newText"] + text[end:]
        return text

    def _offset(self, place: Any) -> int:
        lines = self.text.splitlines(keepends=True)
        return sum(map(len, lines[: place["line"]])) + int(place["character"])


def renamed(editor: Editor, text: str = AREA) -> Text:
    """Returns a document in whose first line `width` was just made `w`."""
    document = Text(editor, text)
    start = text.index("width")
    document.replace(0, start, start + 5, "w")
    return document


def test_what_follows_is_offered_and_taken(knowing: Editor) -> None:
    document = renamed(knowing)
    edit = document.edit()
    assert edit is not None
    assert edit["changes"] == [{"range": span(2, 11, 16), "newText": "w"}]
    document.take(edit)
    assert document.text == AREA.replace("width", "w")
    assert document.edit() is None


@pytest.mark.parametrize("keys", [["width"], ["wi", "d", "th"]], ids=["at once", "key by key"])
def test_what_was_taken_back_is_not_offered_again(knowing: Editor, keys: list[str]) -> None:
    text = AREA.replace("a = 1", "a = width").replace(
        "a = width\n", "a = width\n    pass\n    pass\n"
    )
    document = renamed(knowing, text)
    first = document.edit()
    assert first is not None
    document.take(first)
    second = document.edit()
    assert second is not None
    document.take(second)
    assert "width" not in document.text
    document.replace(4, 11, 12, "")
    for i, key in enumerate(keys):
        at_ = 11 + sum(map(len, keys[:i]))
        document.replace(4, at_, at_, key)
    assert "return width" in document.text
    assert document.edit() is None  # the second was taken back, the first still stands


def test_a_part_that_was_taken_back_is_not_offered_again(knowing: Editor) -> None:
    document = renamed(
        knowing, "def f(width):\n    a = width\n    b = width + 1\n    return width\n"
    )
    edit = document.edit()
    assert edit is not None
    document.take(edit)
    assert document.text.count("w\n") == 2
    document.replace(2, 8, 9, "width")  # one of three lines
    assert document.edit() is None
    other = renamed(knowing)  # elsewhere, nothing was taken back
    assert other.edit() is not None


def test_an_edit_is_skipped_until_the_document_changes(knowing: Editor) -> None:
    lines = "    pass\n" * 4
    text = f"def f(width):\n{lines}    a = width\n{lines}    b = width\n{lines}"
    document = renamed(knowing, text)
    first = document.edit()
    assert first is not None
    document.tell("skipEdit", first)
    second = document.edit()
    assert second is not None
    assert (first["range"], second["range"]) == (span(5, 0, 13), span(10, 0, 13))
    document.tell("skipEdit", second)
    assert document.edit() is None
    document.replace(14, 0, 0, "x")
    again = document.edit()
    assert again is not None
    assert again["range"] == first["range"]


def test_behind_a_dismissed_edit_comes_the_next(knowing: Editor) -> None:
    lines = "    pass\n" * 4
    document = renamed(knowing, f"def f(width):\n{lines}    a = width\n{lines}    b = width\n")
    first = document.edit()
    assert first is not None
    document.tell("dismissEdit", first)
    document.replace(1, 8, 8, "  # here")
    second = document.edit()
    assert second is not None
    assert second["range"]["start"]["line"] == 10


def test_two_cursors_far_apart_are_two_changes(knowing: Editor) -> None:
    far = "".join(f"line = {i}\n" for i in range(2000))
    text = f"def f(width):\n    return width\n{far}def g(width):\n    return width\n"
    document = Text(knowing, text)
    for old, new in (("width", ""), ("", "w")):  # both cursors in each message, as VS Code sends
        end = 6 + len(old)
        changes = [{"range": span(line, 6, end), "text": new} for line in (2002, 0)]
        document.change(*changes)
    expected = document.text.replace("return width", "return w", 1)
    assert document.offered() == expected
    assert (
        document.offered(2002) == document.text[::-1].replace("htdiw nruter", "w nruter", 1)[::-1]
    )


def test_a_key_while_a_prediction_is_on_its_way_makes_it_empty(knowing: Editor) -> None:
    document = renamed(knowing)
    number = document.ask()
    document.replace(4, 0, 0, "x")
    assert knowing.reply(number)["result"] == {"edits": []}
    assert document.offered() == document.text.replace("return width", "return w")


def test_a_cancelled_question_does_not_end_the_next(knowing: Editor) -> None:
    document = renamed(knowing)
    for _ in range(8):
        number = document.ask()
        knowing.notify("$/cancelRequest", {"id": number})
        assert document.edit() is not None


@pytest.mark.slow
def test_a_question_while_the_model_loads_is_answered_then(
    start: Callable[..., Editor], known_bundle: Path
) -> None:
    program = [sys.executable, str(KNOWING), str(known_bundle)]
    for settings, is_offered in (({}, True), ({"edits": False}, False), ({"bundle": ""}, False)):
        editor = start(program=program)
        editor.begin(options={"edit_format": "sweep", **settings})
        document = renamed(editor)
        number = document.ask()  # no model can be there yet
        assert bool(editor.reply(number)["result"]["edits"]) == is_offered


@pytest.mark.parametrize(
    ("edit_format", "remark"),
    [
        ("instruction", "has no chat template"),
        ("instinct", "needs a model with a chat template"),
        ("zeta-2.1", "needs a model whose tokenizer has"),
    ],
)
def test_a_model_that_cannot_be_asked_offers_nothing_and_says_so(
    start: Callable[..., Editor], known_bundle: Path, edit_format: str, remark: str
) -> None:
    editor = start(program=[sys.executable, str(KNOWING), str(known_bundle)])
    editor.begin(options={"edit_format": edit_format})
    assert editor.reply(renamed(editor).ask())["result"] == {"edits": []}
    editor.wait_for("window/showMessage", remark)


def test_a_question_outlives_a_change_of_settings(knowing: Editor) -> None:
    document = renamed(knowing)
    for n_others in (1, 0) * 4:  # each makes another predictor
        number = document.ask()
        settings = {"edgedec": {"n_others": n_others}}
        knowing.notify("workspace/didChangeConfiguration", {"settings": settings})
        assert knowing.reply(number)["result"]["edits"]


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_line_ends_and_tabs_stay(knowing: Editor, end: str) -> None:
    text = "def f(width):\n\tif width:\n\t\treturn '🙂', width\n".replace("\n", end)
    document = Text(knowing, text)
    document.replace(0, 6, 11, "w")
    edit = document.edit()
    assert edit is not None
    columns = [
        (c["range"]["start"]["line"], c["range"]["start"]["character"]) for c in edit["changes"]
    ]
    assert columns == [(1, 4), (2, 15)]  # the face counts as two, as UTF-16 writes it
    assert edit["text"] == f"\tif w:{end}\t\treturn '🙂', w"


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("x = '\0\1'\n", ""),
        (f"x = '{'a' * 200_000}, '\n", ""),
        ("", "var " + "a=1,width=2," * 100_000),
    ],
    ids=["binary", "a long line", "minified"],
)
def test_no_edits_in_files_that_nobody_writes(knowing: Editor, before: str, behind: str) -> None:
    text = AREA.replace("    a = 1\n", before) + behind
    document = renamed(knowing, text)
    assert document.edit() is None
    assert renamed(knowing).edit() is not None  # and the server goes on


def test_a_minified_line_that_changed_is_not_read(knowing: Editor) -> None:
    document = Text(knowing, "width;" * 100_000 + "\n" + "\n" * 40 + AREA)
    document.replace(0, 0, 5, "w")
    assert document.edit(41) is None
    document.replace(41, 9, 14, "w")
    assert document.offered(41) == document.text.replace("return width", "return w")


def test_a_file_of_50_000_lines(knowing: Editor) -> None:
    many = "".join(f"line = {i}\n" for i in range(25_000))
    document = Text(knowing, many + AREA + many)
    document.replace(25_000, 9, 14, "w")
    assert document.offered(25_000) == document.text.replace("return width", "return w")


def test_a_pure_insertion_is_ghost_text_too(knowing: Editor) -> None:
    document = Text(knowing, "a = 1\nb = 1\nd = 4\ne = 5\n")
    document.replace(1, 4, 5, "2")
    edit = document.edit()
    assert edit is not None
    assert edit["changes"] == [
        {"range": {"start": {"line": 2, "character": 0}, "end": {"line": 2, "character": 0}},
         "newText": "c = 3\n"}
    ]  # fmt: skip

    def inserted(line: int, character: int) -> list[Message]:
        asked = at(document.uri, line, character, INVOKED)
        items: list[Message] = knowing.request("textDocument/inlineCompletion", asked)["items"]
        return items

    (item,) = inserted(2, 0)
    assert item["insertText"] == "c = 3\n"
    assert item["range"] == span(2, 0, 0)
    assert inserted(1, 0) == []  # elsewhere it is no insertion
    document.replace(3, 5, 5, "0")
    assert inserted(2, 0) == []  # of a state that is past
