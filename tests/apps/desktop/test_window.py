"""The window, through its keys and dialogues."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from .conftest import answer, until  # first: it skips where there is no PySide6

from PySide6.QtCore import QEvent, QMimeData, QPointF, Qt, QUrl  # isort: skip
from PySide6.QtGui import QDropEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QCheckBox, QComboBox, QDialog, QSpinBox

from edgedec.apps.desktop.document_edit import DocumentEdit, Mode
from edgedec.apps.desktop.settings import EditorSettings, SettingsFile
from edgedec.apps.desktop.window import EditorWindow
from edgedec.models.errors import ConfigError

from .test_text_files import full_disk

Key = Qt.Key
CTRL = Qt.KeyboardModifier.ControlModifier


def current(window: EditorWindow) -> DocumentEdit:
    assert window.current is not None
    return window.current


def opened(window: EditorWindow, path: Path, data: bytes) -> DocumentEdit:
    path.write_bytes(data)
    window.open([path])
    return current(window)


def reported(window: EditorWindow) -> str:
    return window.strip.currentMessage()


def test_a_file_is_opened_edited_and_saved(window: EditorWindow, tmp_path: Path) -> None:
    edit = opened(window, tmp_path / "a.txt", b"one\r\ntwo\r\n")
    assert len(window.documents) == 1  # the empty document made way
    QTest.keyClicks(edit, "zero ")
    assert window.tabs.tabText(0) == "a.txt •"
    QTest.keyClick(window, Key.Key_S, CTRL)
    assert (tmp_path / "a.txt").read_bytes() == b"zero one\r\ntwo\r\n"
    assert window.tabs.tabText(0) == "a.txt"


def test_several_documents_each_once(window: EditorWindow, tmp_path: Path) -> None:
    first = opened(window, tmp_path / "a.txt", b"a")
    opened(window, tmp_path / "b.py", b"b")
    assert [edit.mode for edit in window.documents] == [Mode.PROSE, Mode.CODE]
    window.open([tmp_path / "a.txt"])
    assert current(window) is first
    assert len(window.documents) == 2


def test_what_cannot_be_opened_leaves_no_tab(window: EditorWindow, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    for data in (b"\xff\xfe", b"\xef\xbb\xbf\xef\xbb\xbftwo marks"):
        path.write_bytes(data)
        window.open([path])
        assert str(path) in reported(window)
        assert not any(edit.path for edit in window.documents)
        assert path.read_bytes() == data


def test_a_new_file_is_made_when_it_is_saved(window: EditorWindow, tmp_path: Path) -> None:
    path = tmp_path / "new.txt"
    window.open([path])
    assert not path.exists()
    QTest.keyClicks(current(window), "text")
    assert window.save(current(window))
    assert path.read_bytes() == b"text"


@pytest.mark.parametrize(
    ("button", "is_closed", "saved"),
    [("Save", True, b"xa"), ("Discard", True, b"a"), ("Cancel", False, b"a")],
)
def test_unsaved_text_is_asked_about(
    window: EditorWindow, tmp_path: Path, button: str, is_closed: bool, saved: bytes
) -> None:
    edit = opened(window, tmp_path / "a.txt", b"a")
    QTest.keyClicks(edit, "x")
    asked = answer(button)
    assert window.close_document(edit) is is_closed
    assert asked == ["a.txt has text that is not saved."]
    assert (tmp_path / "a.txt").read_bytes() == saved
    edit.document().setModified(False)


def test_a_window_with_unsaved_text_stays_if_that_is_wanted(
    window: EditorWindow, tmp_path: Path
) -> None:
    QTest.keyClicks(current(window), "x")
    answer("Cancel")
    assert not window.close()
    assert window.isVisible()
    answer("Discard")
    assert window.close()


@pytest.mark.slow
def test_a_full_disk_is_reported_and_loses_nothing(window: EditorWindow, tmp_path: Path) -> None:
    edit = opened(window, tmp_path / "a.txt", b"before")
    edit.setPlainText("x" * 100_000)
    edit.document().setModified(True)
    with full_disk():
        assert not window.save(edit)
    assert "still here" in reported(window)
    assert (tmp_path / "a.txt").read_bytes() == b"before"
    assert edit.is_modified
    assert window.save(edit)


def test_a_file_that_another_program_changed_is_shown_anew(
    window: EditorWindow, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    edit = opened(window, path, b"one")
    path.write_bytes(b"two, longer")
    until(lambda: edit.toPlainText() == "two, longer")
    replacing = tmp_path / "b.txt"
    replacing.write_bytes(b"three, longer still")
    replacing.replace(path)
    until(lambda: edit.toPlainText() == "three, longer still")
    path.write_bytes(b"four: it is still watched")
    until(lambda: edit.toPlainText() == "four: it is still watched")
    path.unlink()
    until(lambda: "is gone" in reported(window))
    assert window.save(edit)
    assert path.read_bytes() == b"four: it is still watched"


@pytest.mark.parametrize(
    ("button", "on_disk", "shown"),
    [
        ("Overwrite", b"xone", "xone"),
        ("Reload", b"theirs", "theirs"),
        ("Cancel", b"theirs", "xone"),
    ],
)
def test_text_on_both_sides_is_asked_about(
    window: EditorWindow, tmp_path: Path, button: str, on_disk: bytes, shown: str
) -> None:
    path = tmp_path / "a.txt"
    edit = opened(window, path, b"one")
    QTest.keyClicks(edit, "x")
    path.write_bytes(b"theirs")
    until(lambda: "was changed by another program" in reported(window))
    assert edit.toPlainText() == "xone"
    answer(button)
    window.save(edit)
    assert (path.read_bytes(), edit.toPlainText()) == (on_disk, shown)
    edit.document().setModified(False)


def test_find_goes_around_and_replaces_in_one_step(window: EditorWindow) -> None:
    edit = current(window)
    edit.setPlainText("one two One")
    QTest.keyClick(window, Key.Key_F, CTRL)
    bar = window.find_bar
    assert bar.isVisible()
    QTest.keyClicks(bar.pattern, "one")
    starts = []
    for _ in range(3):
        assert bar.find_next()
        starts.append(edit.textCursor().selectionStart())
    assert starts == [0, 8, 0]
    assert bar.find_previous()
    assert edit.textCursor().selectionStart() == 8
    bar.replacement.setText("one one")
    bar.replace_all()
    assert edit.toPlainText() == "one one two one one"
    assert len(edit.extraSelections()) == 4
    assert bar.status.text() == "2 replaced"
    edit.undo()
    assert edit.toPlainText() == "one two One"
    bar.has_case.setChecked(True)
    bar.replacement.setText("1")
    bar.find_next()
    bar.replace()
    assert edit.toPlainText() == "1 two One"
    bar.pattern.setText("none")
    assert not bar.find_next()
    assert bar.status.text() == "not found"
    QTest.keyClick(bar.pattern, Key.Key_Escape)
    assert not bar.isVisible()
    assert edit.hasFocus()
    edit.document().setModified(False)


def test_code_keeps_its_indentation(window: EditorWindow, tmp_path: Path) -> None:
    edit = opened(window, tmp_path / "a.py", b"if x:\n    y")
    edit.moveCursor(edit.textCursor().MoveOperation.End)
    QTest.keyClick(edit, Key.Key_Return)
    QTest.keyClicks(edit, "z")
    assert edit.toPlainText() == "if x:\n    y\n    z"
    edit.document().setModified(False)


def test_files_are_dropped(window: EditorWindow, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"dropped")
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path))])
    window.dropEvent(
        QDropEvent(
            QPointF(1, 1),
            Qt.DropAction.CopyAction,
            data,
            Qt.MouseButton.LeftButton,
            Qt.KeyboardModifier.NoModifier,
        )
    )
    assert current(window).toPlainText() == "dropped"


def test_settings_have_effect_at_once_and_are_remembered(
    window: EditorWindow, tmp_path: Path
) -> None:
    edit = current(window)
    window.show_settings()
    dialog = window.settings_dialog
    assert dialog is not None
    dialog.findChild(QSpinBox, "font_size").setValue(21)
    dialog.findChild(QSpinBox, "delay_ms").setValue(300)
    dialog.findChild(QComboBox, "theme").setCurrentText("dark")
    dialog.findChild(QCheckBox, "is_block").setChecked(True)
    assert (edit.font().pointSize(), edit.delay_ms) == (21, 300)
    until(lambda: window.palette().base().color().lightness() < 50)
    kept = SettingsFile(tmp_path / "config").read()
    assert kept == window.settings
    assert (kept.font_size, kept.theme, kept.typing.is_block) == (21, "dark", True)
    dialog.close()


def test_what_changes_beside_an_open_dialog_stays_changed(window: EditorWindow) -> None:
    window.show_settings()
    window.change(replace(window.settings, theme="dark", bundle="other.edgedec"))
    dialog = window.settings_dialog
    assert dialog is not None
    dialog.findChild(QSpinBox, "font_size").setValue(23)
    settings = window.settings
    assert (settings.theme, settings.bundle, settings.font_size) == ("dark", "other.edgedec", 23)
    window.show_settings()
    QTest.qWait(1)
    QApplication.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    assert len(window.findChildren(QDialog)) == 1


def test_settings_that_make_no_sense_are_reported(tmp_path: Path) -> None:
    file = SettingsFile(tmp_path)
    assert file.read() == EditorSettings()
    for given, reason in (
        ("{", "cannot read"),
        (json.dumps({"them": "dark"}), "them"),
        (json.dumps({"theme": "pink"}), "one of system, light, dark"),
        (json.dumps({"typing": {"n_before": 1}}), "n_before"),
        (json.dumps({"font_size": 1000}), "font_size"),
    ):
        file.path.write_text(given)
        with pytest.raises(ConfigError, match=reason):
            file.read()
    file.path.write_text("{}")
    assert file.read() == EditorSettings()
    file.path.write_text('{"context": null}')
    assert file.read().context is None


def test_a_bundle_that_is_not_there_is_reported(
    open_window: Callable[..., EditorWindow], tmp_path: Path
) -> None:
    window = open_window(EditorSettings(bundle=str(tmp_path / "none.edgedec")))
    until(lambda: "none.edgedec" in reported(window))
    QTest.keyClicks(current(window), "still an editor")
    assert current(window).toPlainText() == "still an editor"
    current(window).document().setModified(False)
