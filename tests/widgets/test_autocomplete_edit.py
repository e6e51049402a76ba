"""Ghost text, through the keys of a real widget."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from .conftest import TEXT, destroy, show, until  # first: it skips where there is no PySide6

from PySide6.QtCore import QPoint, Qt  # isort: skip
from PySide6.QtGui import QGuiApplication, QInputMethodEvent, QTextCursor
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from edgedec.autocomplete import AutocompleteConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.widgets import AutocompleteEdit, Suggester, Trigger

from ..autocomplete.typing_parts import HeldPasses, knowing
from ..runtime.conftest import Row, ToyModel, one_hot

Key = Qt.Key
CTRL, ALT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.AltModifier


def type_until_offered(edit: AutocompleteEdit, text: str, offered: str) -> None:
    QTest.keyClicks(edit, text)
    until(lambda: edit.offered == offered)


def seen_in_line(edit: AutocompleteEdit) -> str:
    return edit.textCursor().block().layout().preeditAreaText()


def test_ghost_text_is_seen_and_is_no_part_of_the_document(edit: AutocompleteEdit) -> None:
    changes = []
    type_until_offered(edit, "The ", "quick brown fox")
    edit.textChanged.connect(lambda: changes.append(edit.toPlainText()))
    edit.ask()
    until(lambda: edit.offered)
    assert seen_in_line(edit) == "quick brown fox"
    assert edit.toPlainText() == "The "
    assert edit.document().characterCount() == 5
    edit.selectAll()
    edit.copy()
    assert QGuiApplication.clipboard().text() == "The "
    assert not changes


def test_it_is_painted(edit: AutocompleteEdit) -> None:
    edit.resize(400, 60)
    edit.setCursorWidth(0)
    type_until_offered(edit, "The ", "quick brown fox")
    with_ghost = edit.grab().toImage()
    edit.refuse()
    without = edit.grab().toImage()
    assert with_ghost != without


def test_tab_takes_all_and_undo_takes_that_back(edit: AutocompleteEdit) -> None:
    taken = []
    edit.taken.connect(taken.append)
    type_until_offered(edit, "The ", "quick brown fox")
    QTest.keyClick(edit, Key.Key_Tab)
    assert edit.toPlainText() == "The quick brown fox"
    assert taken == ["quick brown fox"]
    edit.undo()
    assert edit.toPlainText() == "The "
    edit.redo()
    assert edit.toPlainText() == "The quick brown fox"


def test_ctrl_right_takes_a_word(edit: AutocompleteEdit) -> None:
    type_until_offered(edit, "The ", "quick brown fox")
    QTest.keyClick(edit, Key.Key_Right, CTRL)
    assert (edit.toPlainText(), edit.offered) == ("The quick", " brown fox")
    QTest.keyClick(edit, Key.Key_Right, CTRL)
    assert (edit.toPlainText(), edit.offered) == ("The quick brown", " fox")


def test_esc_takes_it_away_until_the_next_key(edit: AutocompleteEdit) -> None:
    type_until_offered(edit, "The ", "quick brown fox")
    QTest.keyClick(edit, Key.Key_Escape)
    QTest.qWait(30)
    assert (edit.offered, edit.toPlainText(), seen_in_line(edit)) == ("", "The ", "")
    type_until_offered(edit, "q", "uick brown fox")


def test_keys_that_agree_shorten_it_at_once(edit: AutocompleteEdit) -> None:
    type_until_offered(edit, "The ", "quick brown fox")
    for n, key in enumerate("quick", 1):
        QTest.keyClick(edit, key)
        assert edit.offered == "quick brown fox"[n:]
        assert seen_in_line(edit) == edit.offered
    QTest.keyClick(edit, "x")
    assert edit.offered == ""


def test_tab_and_esc_without_an_offer_are_qts_own(edit: AutocompleteEdit) -> None:
    QTest.keyClick(edit, Key.Key_Escape)
    QTest.keyClick(edit, Key.Key_Tab)
    assert edit.toPlainText() == "\t"


@pytest.mark.parametrize("move", [Key.Key_Left, Key.Key_Home, Key.Key_Up])
def test_a_cursor_that_moves_is_offered_nothing(edit: AutocompleteEdit, move: Key) -> None:
    type_until_offered(edit, "The ", "quick brown fox")
    QTest.keyClick(edit, move)
    if move != Key.Key_Up:  # which stays in the first line
        assert edit.offered == ""
        assert edit.toPlainText() == "The "


def test_a_cursor_that_moves_asks_where_that_is_wanted(edit: AutocompleteEdit) -> None:
    edit.trigger = Trigger.MOVING
    edit.setPlainText("The ")
    edit.moveCursor(QTextCursor.MoveOperation.End)
    until(lambda: edit.offered == "quick brown fox")


def test_only_on_request(edit: AutocompleteEdit) -> None:
    edit.trigger = Trigger.ON_REQUEST
    QTest.keyClicks(edit, "The ")
    QTest.qWait(50)
    assert edit.offered == ""
    QTest.keyClick(edit, Key.Key_Space, CTRL)
    until(lambda: edit.offered == "quick brown fox")
    assert edit.toPlainText() == "The "


def test_it_waits_for_the_hand_to_rest(edit: AutocompleteEdit) -> None:
    edit.delay_ms = 3_600_000
    QTest.keyClicks(edit, "The ")
    QTest.qWait(50)
    assert edit.offered == ""
    edit.delay_ms = 1
    type_until_offered(edit, "q", "uick brown fox")


def test_nothing_is_offered_where_that_is_off(edit: AutocompleteEdit) -> None:
    edit.is_offering = False
    QTest.keyClicks(edit, "The ")
    QTest.keyClick(edit, Key.Key_Space, CTRL)
    QTest.qWait(30)
    assert edit.offered == ""
    edit.is_offering = True
    type_until_offered(edit, "q", "uick brown fox")


def test_a_suggestion_without_alternatives_stays(edit: AutocompleteEdit) -> None:
    told: list[str] = []
    edit.alone.connect(lambda: told.append(edit.offered))
    type_until_offered(edit, "The ", "quick brown fox")
    QTest.keyClick(edit, Key.Key_BracketRight, ALT)
    until(lambda: told)
    assert told == ["quick brown fox"]


def test_the_next_alternative(
    application: QApplication, make_engine: Callable[..., Engine], tokenizer: Tokenizer
) -> None:
    ways = "I like tea\n", "I like coffee\n", "I like milk\n"

    def rule(prefix: object) -> object:
        return sum(
            (1 - 0.01 * i) * knowing(way, tokenizer)(prefix)  # type: ignore[arg-type]
            for i, way in enumerate(ways)
        )

    config = AutocompleteConfig(max_idle_cpu=0.0, min_probability=0.0)
    with make_engine(rule) as engine:
        suggester = Suggester(engine, config)
        edit = AutocompleteEdit(suggester)
        show(edit)
        type_until_offered(edit, "I like ", "tea")
        QTest.keyClick(edit, Key.Key_BracketRight, ALT)
        until(lambda: edit.offered == "coffee")
        QTest.keyClick(edit, Key.Key_BracketRight, ALT)
        assert edit.offered == "milk"
        QTest.keyClick(edit, Key.Key_BracketLeft, ALT)
        assert edit.offered == "coffee"
        QTest.keyClicks(edit, "co")
        assert edit.offered == "ffee"
        QTest.qWait(30)
        assert edit.offered == "ffee"
        QTest.keyClick(edit, Key.Key_Tab)
        assert edit.toPlainText() == "I like coffee"
        suggester.close()


def test_several_lines_are_seen_below_one_another(
    application: QApplication, engine: Engine
) -> None:
    suggester = Suggester(engine, AutocompleteConfig(is_block=True))
    edit = AutocompleteEdit(suggester)
    show(edit)
    type_until_offered(edit, "The ", TEXT[4:])
    assert edit.textCursor().block().layout().lineCount() >= 4
    assert edit.blockCount() == 1
    edit.resize(300, 60)
    edit.ask()
    until(lambda: edit.offered and edit.verticalScrollBar().value() >= 1)
    QTest.keyClick(edit, Key.Key_Tab)
    assert edit.toPlainText() == TEXT
    assert edit.textCursor().block().layout().lineCount() == 1
    suggester.close()


def spelling(text: str, codec: Tokenizer) -> Callable[[Sequence[int]], Row]:
    """As `knowing`, for characters that take several tokens."""

    def rule(prefix: Sequence[int]) -> Row:
        for n_begun in range(8):
            begun = list(prefix[len(prefix) - n_begun :])
            read = codec.decode(prefix[: len(prefix) - n_begun])
            rest = codec.encode(text[len(read) :]) if text.startswith(read) else []
            if len(rest) > n_begun and rest[:n_begun] == begun:
                row: Row = one_hot(codec.vocab_size, rest[n_begun]) * 4.0
                return row
        return one_hot(codec.vocab_size, 0) * 0.01

    return rule


ODD = ["\U0001f600", "e\u0301", "\u202e", "\ufeff", "\u2028", "\x00", "字"]


@pytest.mark.parametrize("odd", ODD, ids=ascii)
def test_units_of_qt_and_characters_of_the_model_agree(
    application: QApplication,
    make_engine: Callable[..., Engine],
    tokenizer: Tokenizer,
    odd: str,
) -> None:
    text = f"a{odd}{odd} one {odd} two\n"
    with make_engine(spelling(text, tokenizer)) as engine:
        suggester = Suggester(engine, AutocompleteConfig(max_idle_cpu=0.0))
        edit = AutocompleteEdit(suggester)
        show(edit)
        edit.insertPlainText(f"a{odd}{odd} one")
        until(lambda: edit.offered == f" {odd} two")
        edit.insertPlainText(f" {odd}")
        assert edit.offered == " two"
        QTest.keyClick(edit, Key.Key_Tab)
        assert edit.document().toRawText() == text[:-1]
        suggester.close()


def test_edits_while_it_is_seen_leave_nothing_of_it(edit: AutocompleteEdit) -> None:
    for do in (
        lambda: edit.insertPlainText("x\ny\n"),
        lambda: QTest.keyClick(edit, Key.Key_Return),
        lambda: QTest.keyClick(edit, Key.Key_Backspace),
        lambda: edit.setPlainText("other"),
        lambda: QTest.mouseClick(edit.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(2, 2)),
        edit.selectAll,
        edit.undo,
        edit.clear,
        edit.clearFocus,
    ):
        edit.setPlainText("")
        edit.setFocus()
        type_until_offered(edit, "The ", "quick brown fox")
        do()
        blocks = [edit.document().findBlockByNumber(i) for i in range(edit.blockCount())]
        assert not any(block.layout().preeditAreaText() for block in blocks)
        assert edit.offered == ""


def test_it_makes_way_for_an_input_method(edit: AutocompleteEdit) -> None:
    type_until_offered(edit, "The ", "quick brown fox")
    QApplication.sendEvent(edit, QInputMethodEvent("ni", []))
    assert (edit.offered, seen_in_line(edit)) == ("", "ni")
    done = QInputMethodEvent()
    done.setCommitString("q")
    QApplication.sendEvent(edit, done)
    until(lambda: edit.offered == "uick brown fox")
    assert edit.toPlainText() == "The q"


def test_a_pause_and_a_read_only_field_ask_for_nothing(
    edit: AutocompleteEdit, suggester: Suggester
) -> None:
    suggester.is_paused = True
    QTest.keyClicks(edit, "The ")
    QTest.qWait(50)
    assert edit.offered == ""
    suggester.is_paused = False
    edit.setReadOnly(True)
    edit.ask()
    QTest.qWait(50)
    assert edit.offered == ""


def test_an_engine_that_is_gone_is_reported(
    edit: AutocompleteEdit, suggester: Suggester, engine: Engine
) -> None:
    reported = []
    suggester.failed.connect(reported.append)
    engine.close()
    until(lambda: (QTest.keyClick(edit, "a"), reported)[1])
    assert "closed" in reported[0]
    QTest.keyClick(edit, "b")  # goes on without suggestions
    assert edit.toPlainText().endswith("b")


def test_the_interface_goes_on_while_a_pass_is_computed_and_closes_then(
    application: QApplication, make_engine: Callable[..., Engine], tokenizer: Tokenizer
) -> None:
    with make_engine(knowing(TEXT, tokenizer)) as engine:
        model = engine.model
        assert isinstance(model, ToyModel)
        model.before_pass = held = HeldPasses()
        suggester = Suggester(engine)
        edit = AutocompleteEdit(suggester)
        show(edit)
        for key in "The quick brown":  # nobody lets the pass go on before they are typed
            QTest.keyClick(edit, key)
            QTest.qWait(20)
        until(held.began.is_set)
        assert edit.toPlainText() == "The quick brown"
        held.began.clear()
        held.goes_on.set()
        until(held.began.is_set)
        held.goes_on.clear()
        ending = threading.Timer(0.2, held.goes_on.set)
        ending.start()
        suggester.close()
        ending.join()
        edit.close()
    assert held.n_given_up == 0


def test_what_another_field_says_is_read(
    application: QApplication, make_engine: Callable[..., Engine], tokenizer: Tokenizer
) -> None:
    whole = "brown bears\n\nThe brown fox\n"
    config = AutocompleteConfig(max_idle_cpu=0.0, n_before=64)
    with make_engine(knowing(whole, tokenizer), context=512) as engine:
        suggester = Suggester(engine, config)
        other, edit = AutocompleteEdit(suggester), AutocompleteEdit(suggester)
        other.setPlainText("brown bears\n")
        other.be_seen()
        show(edit)
        QTest.keyClicks(edit, "The brown")
        until(lambda: edit.offered == " fox")
        suggester.close()
        destroy(edit)
        destroy(other)


def test_closing_is_what_an_application_does_at_its_end(
    application: QApplication, edit: AutocompleteEdit, suggester: Suggester
) -> None:
    type_until_offered(edit, "The ", "quick brown fox")
    application.aboutToQuit.emit()
    assert suggester.completer is None
    QTest.keyClick(edit, "x")
