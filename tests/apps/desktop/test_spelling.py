"""Words of prose against a dictionary, in the window."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import until  # first: it skips where there is no PySide6

pytest.importorskip("spellchecker", reason="needs pyspellchecker")

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QContextMenuEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu

from edgedec.apps.desktop.document_edit import DocumentEdit, Mode
from edgedec.apps.desktop.settings import EditorSettings
from edgedec.apps.desktop.spelling import underlines
from edgedec.apps.desktop.spelling.own_words import OwnWords
from edgedec.apps.desktop.spelling.words import words_of
from edgedec.apps.desktop.window import EditorWindow
from edgedec.models.errors import ConfigError
from edgedec.widgets.ghost_text import GhostText

pytestmark = pytest.mark.slow

WORKER = [sys.executable, "-m", "edgedec.apps.desktop.spelling.worker"]


def current(window: EditorWindow) -> DocumentEdit:
    assert window.current is not None
    return window.current


def underlined(edit: DocumentEdit) -> list[str]:
    """Returns the texts that have a wavy line, as they are painted."""
    found = []
    block = edit.document().begin()
    while block.isValid():
        layout = block.layout()
        at, preedit = layout.preeditAreaPosition(), layout.preeditAreaText()
        units = block.text()[: max(at, 0)] + preedit + block.text()[max(at, 0) :]
        data = units.encode("utf-16-le")
        for one in layout.formats():
            if one.format.underlineColor() == QColor("#d64545"):
                piece = data[2 * one.start : 2 * (one.start + one.length)]
                found.append(piece.decode("utf-16-le"))
        block = block.next()
    return found


def menu_at(edit: DocumentEdit, text: str) -> QMenu:
    """Returns the menu that the right button brings up on ``text``."""
    cursor = edit.textCursor()
    cursor.setPosition(edit.toPlainText().index(text) + 2)
    point = edit.cursorRect(cursor).center()
    event = QContextMenuEvent(QContextMenuEvent.Reason.Mouse, point, edit.mapToGlobal(point))
    QApplication.sendEvent(edit.viewport(), event)
    menu = QApplication.activePopupWidget()
    assert isinstance(menu, QMenu)
    return menu


def choose(menu: QMenu, text: str) -> None:
    next(one for one in menu.actions() if text in one.text()).trigger()
    menu.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's a day-to-day cafe\u0301.", ["It's", "day", "day", "cafe\u0301"]),
        ("see src/main.py, www.example.org or a@b.de", ["see"]),
        ("NASA's iPhone 3rd x86 `cod` call(me)", []),
        (
            "l\u2019eau, \u00fcber; \u65e5\u672c\u8a9e\u3067",
            ["l\u2019eau", "\u00fcber", "\u65e5\u672c\u8a9e\u3067"],
        ),
        ("\ud800\0", []),
    ],
)
def test_words_are_reported_from_what_is_none(text: str, words: list[str]) -> None:
    assert [text[slice(*span)] for span in words_of(text)] == words


def test_wrong_words_are_underlined_and_mended(window: EditorWindow, tmp_path: Path) -> None:
    edit = current(window)
    edit.setPlainText("\U0001f642 The quik brown fox doesn't jumpp.\nZweifel\n" * 2)
    until(lambda: underlined(edit) == ["quik", "jumpp", "Zweifel"] * 2)
    menu = menu_at(edit, "quik")
    until(lambda: any(one.text() == "quick" for one in menu.actions()))
    choose(menu, "quick")
    assert edit.toPlainText().startswith("\U0001f642 The quick brown")
    assert underlined(edit) == ["jumpp", "Zweifel", "quik", "jumpp", "Zweifel"]
    edit.undo()
    assert "quik" in underlined(edit)
    choose(menu_at(edit, "Zweifel"), "to the dictionary")
    until(lambda: "Zweifel" not in underlined(edit))
    own = tmp_path / "config" / "words.txt"
    assert own.read_text() == "zweifel\n"
    assert stat.S_IMODE(own.stat().st_mode) == 0o600


def test_a_word_that_is_being_written_is_left_alone(window: EditorWindow) -> None:
    edit = current(window)
    QTest.keyClicks(edit, "wrongg rigth")
    until(lambda: underlined(edit) == ["wrongg"])
    QTest.qWait(100)
    assert underlined(edit) == ["wrongg"]
    QTest.keyClicks(edit, " ")
    until(lambda: underlined(edit) == ["wrongg", "rigth"])
    QTest.keyClick(edit, Qt.Key.Key_Return)
    assert underlined(edit) == ["wrongg", "rigth"]


def test_lines_stay_below_their_words_beside_what_is_on_offer(window: EditorWindow) -> None:
    edit = current(window)
    edit.setPlainText("wrongg and rigth")
    until(lambda: underlined(edit) == ["wrongg", "rigth"])
    ghost = GhostText(edit.document())
    ghost.show(7, [("ghost \U0001f642 ", QColor("red"))])
    assert underlined(edit) == ["wrongg", "rigth"]
    window.speller.add("wrongg")
    until(lambda: underlined(edit) == ["rigth"])
    assert any(
        one.format.foreground().color() == QColor("red")
        for one in edit.document().begin().layout().formats()
    )
    ghost.hide()
    assert underlined(edit) == ["rigth"]


def test_code_and_other_languages(window: EditorWindow, tmp_path: Path) -> None:
    from dataclasses import replace

    edit = current(window)
    edit.setPlainText("wrongg Haus")
    until(lambda: underlined(edit) == ["wrongg", "Haus"])
    window.follow(replace(window.settings, spelling="de"))
    until(lambda: underlined(edit) == ["wrongg"])
    edit.mode = Mode.CODE
    edit.follow(window.settings)
    assert underlined(edit) == []
    edit.mode = Mode.PROSE
    window.follow(replace(window.settings, spelling=""))
    QTest.qWait(100)
    assert underlined(edit) == []
    window.follow(replace(window.settings, spelling="xx"))
    until(lambda: "no dictionary of 'xx', expected one of" in window.strip.currentMessage())


def test_without_the_library_it_is_an_editor_all_the_same(
    open_window: Callable[..., EditorWindow], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "spellchecker.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    window = open_window(EditorSettings())
    until(lambda: "pip install 'edgedec-runtime[desktop]'" in window.strip.currentMessage())
    QTest.keyClicks(current(window), "wrongg ")
    assert underlined(current(window)) == []


def test_a_dictionary_that_dies_is_no_harm(window: EditorWindow) -> None:
    edit = current(window)
    edit.setPlainText("wrongg")
    until(lambda: underlined(edit) == ["wrongg"])
    process = window.speller._process
    assert process is not None
    process.kill()
    until(lambda: underlined(edit) == [])
    QTest.keyClicks(edit, "still ")


def test_long_prose_is_looked_at_where_it_is_seen(
    window: EditorWindow, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []

    def counted(text: str) -> Iterator[tuple[int, int]]:
        looked_at.append(text)
        return words_of(text)

    monkeypatch.setattr(underlines, "words_of", counted)
    edit = current(window)
    edit.setPlainText("Some wrongg words here.\n" * 20_000)
    until(lambda: underlined(edit))
    assert len(underlined(edit)) < 200
    edit.moveCursor(edit.textCursor().MoveOperation.End)
    for key in "more wrongg words ":
        looked_at.clear()
        QTest.keyClick(edit, key)
        assert len(looked_at) < 200
        QTest.qWait(5)
    until(lambda: block_is_underlined(edit))


def block_is_underlined(edit: DocumentEdit) -> bool:
    return len(edit.document().lastBlock().layout().formats()) == 1


def test_own_words_of_two_editors(tmp_path: Path) -> None:
    one, two = (OwnWords(tmp_path / "config" / "words.txt") for _ in range(2))
    one.add("Foo")
    two.add("bar")
    one.add("baz")
    assert "foo" in two
    assert one.path.read_text() == "bar\nbaz\nfoo\n"
    one.path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="mend or remove it"):
        two.read()
    one.path.write_bytes(b"a\n" * (1 << 20))
    with pytest.raises(ConfigError, match="more than"):
        two.read()


def test_the_worker_answers_lines() -> None:
    asked = [{"check": ["men's", "teh", "Paris"]}, {"suggest": "Teh"}, {"suggest": "x" * 200}]
    done = subprocess.run(
        [*WORKER, "en"],
        input="".join(json.dumps(one) + "\n" for one in asked),
        capture_output=True,
        text=True,
        timeout=60,
    )
    checked, like, none = map(json.loads, done.stdout.splitlines())
    assert checked["unknown"] == ["teh"]
    assert like["suggestions"][0] == "The"
    assert none["suggestions"] == []
