"""The next edit in a text field, through its keys. The model knows by heart what follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from .conftest import destroy, show, until  # first: it skips where there is no PySide6

pytest.importorskip("pygls")

from PySide6.QtCore import Qt  # isort: skip
from PySide6.QtGui import QTextCursor
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QTextEdit

from edgedec.autocomplete import AutocompleteConfig
from edgedec.autocomplete.edits import EditConfig, EditPredictor
from edgedec.widgets import AutocompleteEdit, Suggester

from ..apps.lsp.knowing_server import knowing_engine

Key = Qt.Key
AREA = "def area(width):\n    a = width, width\n    return width\n\n\nprint(area(1))\n"
FAR = AREA.replace("    return width", "    pass\n" * 60 + "    return width")


@pytest.fixture
def open_text(application: QApplication) -> Iterator[Callable[[str, float], AutocompleteEdit]]:
    """Returns an opener of text fields, given how likely an offer at the cursor has to be."""
    opened: list[AutocompleteEdit] = []
    with knowing_engine() as engine, EditPredictor(engine, EditConfig(format="sweep")) as predictor:

        def begin(text: str, least: float = 1) -> AutocompleteEdit:
            config = AutocompleteConfig(min_probability=least, max_idle_cpu=0.0, n_others=0)
            suggester = Suggester(engine, config)
            suggester.predictor = predictor
            edit = AutocompleteEdit(suggester)
            edit.resize(600, 400)
            edit.setPlainText(text)
            show(edit)
            edit.be_seen()
            opened.append(edit)
            return edit

        yield begin
        for edit in opened:
            edit._suggester.close()
            destroy(edit)


def rename(edit: AutocompleteEdit) -> None:
    """Makes the first `width` of a text `w`, as somebody does who writes."""
    cursor = edit.textCursor()
    start = edit.toPlainText().index("width")
    cursor.setPosition(start)
    cursor.setPosition(start + 5, QTextCursor.MoveMode.KeepAnchor)
    edit.setTextCursor(cursor)
    QTest.keyClicks(edit, "w")
    until(lambda: edit.next_edit.shown)


def struck(edit: AutocompleteEdit) -> list[str]:
    marks: list[QTextEdit.ExtraSelection] = edit.extraSelections()
    return [m.cursor.selectedText() for m in marks if m.format.fontStrikeOut()]


def added(edit: AutocompleteEdit) -> list[tuple[int, str]]:
    """Returns the lines in which new text is seen, and the text."""
    block, found = edit.document().begin(), []
    while block.isValid():
        if text := block.layout().preeditAreaText():
            found.append((block.blockNumber(), text.replace("\u2028", "\n")))
        block = block.next()
    return found


def line(edit: AutocompleteEdit) -> int:
    return edit.textCursor().blockNumber()


Open = Callable[..., AutocompleteEdit]


def test_old_text_is_struck_and_new_text_stands_beside_it(open_text: Open) -> None:
    edit = open_text(AREA)
    rename(edit)
    assert struck(edit) == ["width, width", "width"]
    assert added(edit) == [(1, "w, w"), (2, "w")]
    assert edit.toPlainText() == AREA.replace("width", "w", 1)
    assert edit.offered == ""


def test_tab_jumps_then_takes_and_undo_takes_all_of_it_back(open_text: Open) -> None:
    edit = open_text(AREA)
    rename(edit)
    before = edit.toPlainText()
    QTest.keyClick(edit, Key.Key_Tab)
    assert (line(edit), edit.toPlainText()) == (1, before)
    assert struck(edit) == ["width, width", "width"]
    QTest.keyClick(edit, Key.Key_Tab)
    assert edit.toPlainText() == AREA.replace("width", "w")
    assert (struck(edit), added(edit)) == ([], [])
    edit.undo()
    assert edit.toPlainText() == before


def test_esc_dismisses_it(open_text: Open) -> None:
    edit = open_text(AREA)
    rename(edit)
    QTest.keyClick(edit, Key.Key_Escape)
    assert (edit.next_edit.shown, struck(edit), added(edit)) == (None, [], [])
    silence: list[object] = []
    edit._suggester._silent.connect(silence.append)
    edit._suggester._found_edit.connect(silence.append)
    QTest.keyClick(edit, Key.Key_Space, Qt.KeyboardModifier.ControlModifier)
    until(lambda: len(silence) == 2)
    QTest.qWait(0)
    assert edit.next_edit.shown is None


def test_an_edit_out_of_sight_is_said_where_the_cursor_is(open_text: Open) -> None:
    edit = open_text(FAR.replace("width, width", "1"))
    rename(edit)
    assert added(edit) == [(0, "  Tab: edit in line 63"), (62, "w")]
    QTest.keyClick(edit, Key.Key_Tab)
    assert line(edit) == 62
    assert added(edit) == [(62, "w")]
    QTest.keyClick(edit, Key.Key_Tab)
    assert "width" not in edit.toPlainText()


def test_a_new_line_stands_below_the_line_before_it(open_text: Open) -> None:
    edit = open_text("def f(width):\n    b = 2\n    return 1\n")
    rename(edit)
    assert struck(edit) == []
    assert added(edit) == [(1, "\nc = 3")]
    QTest.keyClick(edit, Key.Key_Tab)
    QTest.keyClick(edit, Key.Key_Tab)
    assert edit.toPlainText() == "def f(w):\n    b = 2\nc = 3\n    return 1\n"


def test_an_offer_at_the_cursor_comes_first(open_text: Open) -> None:
    edit = open_text(AREA + "The su", 0.1)
    rename(edit)
    edit.moveCursor(QTextCursor.MoveOperation.End)
    QTest.keyClicks(edit, "n")
    until(lambda: edit.offered == " rises")
    assert (edit.next_edit.shown, struck(edit)) == (None, [])
    QTest.keyClick(edit, Key.Key_Escape)
    until(lambda: edit.next_edit.shown)
    assert edit.offered == ""


def test_marks_of_others_stay(open_text: Open) -> None:
    edit = open_text(AREA)
    mark = QTextEdit.ExtraSelection()
    mark.cursor = edit.textCursor()
    edit.setExtraSelections([mark])
    rename(edit)
    assert len(edit.extraSelections()) == 3
    edit.setExtraSelections([])
    assert struck(edit) == ["width, width", "width"]
    QTest.keyClick(edit, Key.Key_Escape)
    assert edit.extraSelections() == []


def test_typing_takes_it_away_and_a_click_does_not(open_text: Open) -> None:
    edit = open_text(AREA)
    rename(edit)
    QTest.mouseClick(edit.viewport(), Qt.MouseButton.LeftButton)
    assert struck(edit) == ["width, width", "width"]
    QTest.keyClicks(edit, "x")
    assert (edit.next_edit.shown, struck(edit), added(edit)) == (None, [], [])
