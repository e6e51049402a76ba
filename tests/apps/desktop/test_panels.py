"""What is beside the text: found places, the folder, the counters, the icon."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import application, until  # first: it skips where there is no PySide6

from PySide6.QtCore import Qt  # isort: skip
from PySide6.QtGui import QColor
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog, QLineEdit, QSpinBox

from edgedec.apps.desktop.document_edit import DocumentEdit, Mode
from edgedec.apps.desktop.icons import icon_pixmap
from edgedec.apps.desktop.seen_lines import seen_lines
from edgedec.apps.desktop.settings import EditorSettings, SettingsFile
from edgedec.apps.desktop.window import EditorWindow

from .test_code import marked_lines

__all__ = ["application"]

Key = Qt.Key
CTRL = Qt.KeyboardModifier.ControlModifier


def current(window: EditorWindow) -> DocumentEdit:
    assert window.current is not None
    return window.current


def test_found_places_are_counted_and_highlighted(window: EditorWindow) -> None:
    edit, bar = current(window), window.find_bar
    edit.setPlainText("one two One\none")
    QTest.keyClick(window, Key.Key_F, CTRL)
    QTest.keyClicks(bar.pattern, "one")
    until(lambda: bar.status.text() == "3 found")
    assert [mark.cursor.selectionStart() for mark in edit.extraSelections()] == [0, 8, 12]
    bar.find_next()
    bar.find_next()
    assert bar.status.text() == "2 of 3"
    bar.has_case.setChecked(True)
    until(lambda: bar.status.text() == "2 found")  # the selected one is none of them
    edit.appendPlainText("one")
    until(lambda: bar.status.text() == "3 found")
    bar.pattern.setText("none")
    until(lambda: bar.status.text() == "not found")
    bar.pattern.setText("one")
    window.new()  # nothing of it is in the other document
    until(lambda: bar.status.text() == "not found")
    assert edit.extraSelections() == []
    window.tabs.setCurrentWidget(edit)
    until(lambda: bar.status.text() == "3 found")
    QTest.keyClick(bar.pattern, Key.Key_Escape)
    assert edit.extraSelections() == []


def test_a_thousand_places_are_enough(window: EditorWindow) -> None:
    edit, bar = current(window), window.find_bar
    edit.setPlainText("a" * 5000)
    bar.begin()
    bar.pattern.setText("a")
    bar.find_next()
    assert bar.status.text() == "1 of 1,000+"


def test_a_folder_is_opened_and_remembered(
    open_window: Callable[..., EditorWindow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = open_window()
    folder = tmp_path / "project"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.py").write_text("a = 1")
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *given: str(folder))
    assert not window.tree.isVisible()
    QTest.keyClick(window, Key.Key_O, CTRL | Qt.KeyboardModifier.ShiftModifier)
    assert window.tree.isVisible()
    assert window.tree.windowTitle() == "project"
    files = window.tree.files
    assert files is not None
    until(lambda: files.rowCount(window.tree.view.rootIndex()) == 2)
    window.tree.view.clicked.emit(files.index(str(folder / "inner")))
    window.tree.view.clicked.emit(files.index(str(folder / "a.py")))
    assert [edit.path for edit in window.documents] == [folder / "a.py"]
    assert SettingsFile(tmp_path / "config").read().folder == str(folder)
    window.follow(EditorSettings(folder=str(tmp_path / "gone")))
    assert not window.tree.isVisible()


def test_counters_are_in_a_panel_that_stays_open(
    open_window: Callable[..., EditorWindow], tmp_path: Path
) -> None:
    window = open_window()
    assert not window.details.isVisible()
    QTest.keyClick(window, Key.Key_I, CTRL)
    assert window.details.isVisible()
    assert window.settings.has_details
    window.model.n_drafted, window.model.n_accepted = 1200, 900
    window.model.origins.update(target=3, prompt_lookup=5)
    window.strip.ms = 32.4
    window.details.show_bundle("/models/coder.edgedec")
    values = {name: label.text() for name, label in window.details.values.items()}
    assert values["Model"] == "coder.edgedec"
    assert values["Drafted tokens"] == "1,200, 900 accepted"
    assert values["Time to suggestion"] == "32 ms"
    assert "prompt_lookup</span>: 5 tokens" in values["Written by"]
    assert "the model</span>: 3 tokens" in values["Written by"]
    assert "of all processors" in values["Processor time"]
    assert open_window(SettingsFile(tmp_path / "config").read()).details.isVisible()


def test_settings_are_reset_and_files_stay(window: EditorWindow, tmp_path: Path) -> None:
    window.change(EditorSettings(bundle="b", font_size=30, recent=("/a",), theme="dark"))
    window.show_settings()
    dialog = window.settings_dialog
    assert dialog is not None
    size = dialog.findChild(QSpinBox, "font_size")
    assert size.value() == 30
    dialog.defaults.click()
    assert size.value() == EditorSettings().font_size
    assert window.settings == EditorSettings(bundle="b", recent=("/a",))
    assert SettingsFile(tmp_path / "config").read() == window.settings
    dialog.findChild(QSpinBox, "min_probability").setValue(25)
    assert window.settings.typing.min_probability == 0.25
    dialog.findChild(QSpinBox, "context").setValue(0)
    assert window.settings.context is None


def test_files_of_some_endings_get_no_suggestions(window: EditorWindow, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("a")
    (tmp_path / "b.py").write_text("b")
    window.open([tmp_path / "a.md", tmp_path / "b.py"])
    window.show_settings()
    dialog = window.settings_dialog
    assert dialog is not None
    line = dialog.findChild(QLineEdit, "silent")
    assert line is not None
    line.setText("*.MD, .txt")
    line.editingFinished.emit()
    assert SettingsFile(tmp_path / "config").read().silent == "*.MD, .txt"
    offering = {edit.title: edit.is_offering for edit in window.documents}
    assert offering == {"a.md": False, "b.py": True}
    assert window.new().is_offering


def test_one_suggestion_is_called_so(window: EditorWindow) -> None:
    assert window.current is not None
    window.current.alone.emit()
    assert window.strip.currentMessage() == "This is the only suggestion"


def test_fonts_and_tabs_are_as_the_settings_say(window: EditorWindow, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("")
    window.open([path])
    edit = current(window)
    settings = EditorSettings(code_font="Liberation Mono", prose_font="Liberation Serif")
    window.follow(settings)
    assert edit.font().families()[0] == "Liberation Mono"
    QTest.keyClick(edit, Key.Key_Tab)
    assert edit.toPlainText() == "    "
    edit.clear()
    window.follow(EditorSettings(has_tabs=True))
    QTest.keyClick(edit, Key.Key_Tab)
    assert edit.toPlainText() == "\t"
    assert edit.font().families()[0] != "Liberation Mono"
    edit.mode = Mode.PROSE
    edit.follow(settings)
    assert edit.font().families()[0] == "Liberation Serif"


def test_lines_are_coloured_above_ghost_text_at_the_end(
    window: EditorWindow, tmp_path: Path
) -> None:
    path = tmp_path / "a.py"
    path.write_text("import os\n" * 5 + "x")
    window.open([path])
    edit = current(window)
    edit.moveCursor(edit.textCursor().MoveOperation.End)
    edit._ghost.show(edit.document().characterCount() - 1, [(" = os.environ", QColor("grey"))])
    assert len(seen_lines(edit)) == 6
    assert marked_lines(edit) == [5]  # also where ghost text ends the line

    def colour() -> str:
        ranges = edit.document().firstBlock().layout().formats()
        first = ranges[0] if ranges else None
        return "" if first is None else first.format.foreground().color().name()

    until(lambda: bool(colour()))
    light = colour()
    window.follow(EditorSettings(theme="dark"))
    until(lambda: colour() != light)


def test_the_icon_is_drawn_and_grey_while_paused(application: QApplication) -> None:
    centre = [
        icon_pixmap(64, is_paused).toImage().pixelColor(10, 32) for is_paused in (False, True)
    ]
    assert centre[0].hsvSaturation() > 150
    assert centre[1].hsvSaturation() < 40
    assert icon_pixmap(16).toImage().pixelColor(0, 0).alpha() == 0
