"""What the window does for programs: colours, numbers, indentation, places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import until  # first: it skips where there is no PySide6

from PySide6.QtCore import Qt  # isort: skip
from PySide6.QtTest import QTest  # isort: skip
from PySide6.QtWidgets import QApplication, QLabel  # isort: skip

from edgedec.apps.desktop import themes
from edgedec.apps.desktop.document_edit import DocumentEdit
from edgedec.apps.desktop.keys_dialog import KeysDialog
from edgedec.apps.desktop.seen_lines import seen_lines
from edgedec.apps.desktop.settings import N_RECENT, EditorSettings, SettingsFile
from edgedec.apps.desktop.window import EditorWindow
from edgedec.models.errors import ConfigError

Key = Qt.Key
SHIFT = Qt.KeyboardModifier.ShiftModifier


def opened(window: EditorWindow, path: Path, text: str) -> DocumentEdit:
    path.write_text(text, encoding="utf-8")
    window.open([path])
    assert window.current is not None
    return window.current


def colours(edit: DocumentEdit, line: int) -> dict[str, str]:
    """Returns the coloured pieces of a line."""
    block = edit.document().findBlockByNumber(line)
    raw = block.text().encode("utf-16-le")
    return {
        raw[2 * one.start : 2 * (one.start + one.length)].decode("utf-16-le"): (
            one.format.foreground().color().name()
        )
        for one in block.layout().formats()
    }


def marked_lines(edit: DocumentEdit) -> list[int]:
    """Returns the lines that are marked up to the right edge of what is seen."""
    QTest.qWait(1)
    image = edit.viewport().grab().toImage()
    wanted = QApplication.palette().alternateBase().color()
    lines = {line.blockNumber(): edit.margin._line(line).center().y() for line in seen_lines(edit)}
    x = image.width() - 2
    return [
        line for line, y in lines.items() if y < image.height() and image.pixelColor(x, y) == wanted
    ]


def test_a_program_is_coloured_by_its_language(window: EditorWindow, tmp_path: Path) -> None:
    text = '"""Two\nlines: def."""\ndef f():\n    return "🙂 x", 1  # why\n'
    edit = opened(window, tmp_path / "a.py", text)
    until(lambda: "def" in colours(edit, 2))
    found = colours(edit, 3)
    assert {"return", "# why", "1"} <= found.keys()
    assert len({found["return"], found["# why"], found["1"]}) == 3
    assert "def" not in colours(edit, 1)  # inside of a string that begins above
    before = found["# why"]
    window._turn_theme()
    until(lambda: colours(edit, 3).get("# why") not in (None, before))
    assert marked_lines(edit) == [0]
    assert edit.toPlainText() == text
    assert not edit.is_modified


def test_prose_has_neither_colours_nor_numbers(window: EditorWindow, tmp_path: Path) -> None:
    edit = opened(window, tmp_path / "a.py", "def f(): pass\n")
    until(lambda: colours(edit, 0))
    assert edit.margin.isVisible()
    assert edit.viewportMargins().left() == edit.margin.wanted_width > 0
    window._turn_mode()
    assert colours(edit, 0) == {}
    assert not edit.margin.isVisible()
    assert edit.viewportMargins().left() == 0


def test_numbers_make_room_for_more_digits(window: EditorWindow, tmp_path: Path) -> None:
    edit = opened(window, tmp_path / "a.py", "x\n" * 98)
    before = edit.margin.wanted_width
    edit.moveCursor(edit.textCursor().MoveOperation.End)
    edit.insertPlainText("y\ny\n")
    assert edit.viewportMargins().left() == edit.margin.wanted_width > before
    edit.ensureCursorVisible()
    assert marked_lines(edit) == [edit.textCursor().blockNumber()]
    edit.document().setModified(False)


@pytest.mark.parametrize(("blank", "step"), [("    ", "    "), ("\t", "\t")])
def test_tab_and_shift_tab_indent_and_keep_the_keyboard(
    window: EditorWindow, tmp_path: Path, blank: str, step: str
) -> None:
    edit = opened(window, tmp_path / "a.py", f"if x:\n{blank}y\n\nz\n")
    edit.selectAll()
    QTest.keyClick(edit, Key.Key_Tab)
    assert edit.toPlainText() == f"{step}if x:\n{step}{blank}y\n\n{step}z\n"
    for _ in range(3):
        QTest.keyClick(edit, Key.Key_Backtab, SHIFT)
    assert edit.toPlainText() == "if x:\ny\n\nz\n"
    assert edit.hasFocus()
    QTest.keyClicks(edit, "w")  # goes where the other keys went
    assert edit.toPlainText() == "w"
    for _ in range(5):
        edit.undo()
    assert edit.toPlainText() == f"if x:\n{blank}y\n\nz\n"
    edit.document().setModified(False)


def test_shift_tab_keeps_the_keyboard_in_prose(window: EditorWindow, tmp_path: Path) -> None:
    edit = opened(window, tmp_path / "a.md", "  words")
    QTest.keyClick(edit, Key.Key_Backtab, SHIFT)
    assert edit.hasFocus()
    assert edit.toPlainText() == "words"
    edit.document().setModified(False)


def test_a_line_that_opens_a_block_indents_the_next(window: EditorWindow, tmp_path: Path) -> None:
    edit = opened(window, tmp_path / "a.py", "")
    QTest.keyClicks(edit, "if x:")
    QTest.keyClick(edit, Key.Key_Return)
    QTest.keyClicks(edit, "y")
    QTest.keyClick(edit, Key.Key_Tab)
    QTest.keyClick(edit, Key.Key_Return)
    assert edit.toPlainText() == "if x:\n    y   \n    "
    edit.document().setModified(False)


def test_lines_are_gone_to(window: EditorWindow, tmp_path: Path) -> None:
    edit = opened(window, tmp_path / "a.py", "x\n" * 50)
    for number, line in ((20, 19), (1, 0), (999, 50)):
        edit.go_to_line(number)
        assert edit.textCursor().blockNumber() == line


def test_the_title_names_the_file(window: EditorWindow, tmp_path: Path) -> None:
    edit = opened(window, tmp_path / "a.py", "x")
    assert window.windowTitle() == "a.py[*] - edgedec"
    assert not window.isWindowModified()
    QTest.keyClicks(edit, "y")
    assert window.isWindowModified()
    window.new()
    assert window.windowTitle() == "untitled[*] - edgedec"
    edit.document().setModified(False)


def test_recent_files_are_remembered(window: EditorWindow, tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.py" for i in range(N_RECENT + 2)]
    for path in [*paths, paths[5]]:
        opened(window, path, "x")
        window.close_document(window.documents[-1])
    kept = SettingsFile(tmp_path / "config").read().recent
    assert kept[:2] == (str(paths[5]), str(paths[-1]))
    assert len(kept) == len(set(kept)) == N_RECENT
    window._list_recent()
    window.recent.actions()[0].trigger()
    assert window.current is not None
    assert window.current.path == paths[5]


def test_text_is_zoomed_within_bounds(open_window: Callable[..., EditorWindow]) -> None:
    window = open_window(EditorSettings(font_size=71))
    for size in (72, 72):
        window._zoom(1)
        assert window.current is not None
        assert window.current.font().pointSize() == size


def test_a_window_is_as_dark_as_the_system(
    window: EditorWindow, application: QApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = application.styleHints().colorSchemeChanged
    for is_dark, scheme in ((True, Qt.ColorScheme.Dark), (False, Qt.ColorScheme.Light)):
        # Qt has no such setting without a screen, so the test stands for the system.
        monkeypatch.setattr(themes, "system_is_dark", lambda is_dark=is_dark: is_dark)
        changed.emit(scheme)
        assert window.theme.is_dark is is_dark
    window._turn_theme()
    changed.emit(Qt.ColorScheme.Light)
    assert window.theme.is_dark  # chosen by hand


def test_all_keys_are_listed(window: EditorWindow) -> None:
    dialog = KeysDialog(window)
    texts = {label.text() for label in dialog.findChildren(QLabel)}
    assert {"Go to line", "Dedent", "Find and replace", "Ctrl+G", "Pause", "Folder"} <= texts
    dialog.close()


def test_recent_files_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="recent"):
        EditorSettings.parse({"recent": [1]}, "a file")
