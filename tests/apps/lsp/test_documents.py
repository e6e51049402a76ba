"""Documents as an editor changes them, and the part of them that is read."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.apps.lsp.text_buffer import TextBuffer

types = pytest.importorskip("lsprotocol.types")
documents = pytest.importorskip("edgedec.apps.lsp.documents")


def make(text: str) -> Any:
    return documents.OpenDocument("file:///a", TextBuffer(text))


def place(line: int, character: int) -> types.Position:
    return types.Position(line, character)


def edit(line: int, start: int, end: int, text: str) -> types.TextDocumentContentChangePartial:
    return types.TextDocumentContentChangePartial(
        types.Range(place(line, start), place(line, end)), text
    )


def test_changes_are_made_one_after_the_other() -> None:
    document = make("🙂a\r\nb\rc")
    document.change([edit(0, 2, 3, "A"), edit(2, 0, 1, "C\n"), edit(3, 0, 0, "d")])
    assert document.buffer.text == "🙂A\r\nb\rC\nd"
    document.change([types.TextDocumentContentChangeWholeDocument("new"), edit(0, 0, 1, "N")])
    assert document.buffer.text == "New"


def test_what_is_near_the_cursor_is_read_and_stays_put() -> None:
    line = "日本🙂 line\n"
    document = make(line * 3000)
    parts = [document.near(place(2000, n), 500) for n in range(6)]
    assert len({part.offset for part in parts}) == 1
    for n, part in enumerate(parts):
        before, after = part.text[: part.cursor], part.text[part.cursor :]
        assert before.endswith(
            line * 50 + "日本🙂 l"[: n - (n > 2)] if n != 3 else line * 50 + "日本"
        )
        assert len(after) >= 500
        assert len(part.text) < 10_000


def test_a_cursor_within_a_character_is_before_it() -> None:
    document = make("a🙂b")
    near = document.near(place(0, 2), 10)
    assert (near.text, near.cursor) == ("a🙂b", 1)
    assert document.word_before(place(0, 2))[1].end == place(0, 1)


@pytest.mark.parametrize(
    ("text", "character", "word", "start"),
    [
        ("x = foo_1", 9, "foo_1", 4),
        ("x = foo_1", 99, "foo_1", 4),
        ("x = ", 4, "", 4),
        ("🙂größe", 7, "größe", 2),
        ("", 0, "", 0),
    ],
)
def test_the_word_that_is_typed(text: str, character: int, word: str, start: int) -> None:
    found, where = make(text).word_before(place(0, character))
    assert found == word
    assert where == types.Range(
        place(0, start), place(0, min(character, len(text) + 1 * (text[:1] == "🙂")))
    )
