"""The next edit in the window, from the process that has the model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from .conftest import until  # it skips where there is no PySide6

from PySide6.QtCore import Qt  # isort: skip
from PySide6.QtGui import QTextCursor
from PySide6.QtTest import QTest

import edgedec
from edgedec.apps.desktop.document_edit import DocumentEdit
from edgedec.apps.desktop.settings import EditorSettings
from edgedec.apps.desktop.window import EditorWindow
from edgedec.autocomplete import AutocompleteConfig, Document
from edgedec.autocomplete.edits import EditPredictor
from edgedec.models.manifest import EDITS_KEY, MANIFEST_NAME

from .test_program import wait_for_another

pytestmark = pytest.mark.slow

BEFORE = "def hello(name):\n    return 'Hello ' + name\n\nprint(hello('Ann'))\n"
NOW = BEFORE.replace("hello", "greet", 1)
SILENT = AutocompleteConfig(method="plain", min_probability=1.0)
Open = Callable[..., EditorWindow]


@pytest.fixture(scope="module")
def bundle(smollm2_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2, which is calibrated to show every edit. It is too small for sensible ones."""
    folder = tmp_path_factory.mktemp("bundles") / "smollm2.edgedec"
    shutil.copytree(smollm2_bundle, folder, symlinks=True)
    path = folder / MANIFEST_NAME
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["defaults"][EDITS_KEY] = {"instruction": {"min_probability": 0.0}}
    path.write_text(json.dumps(manifest), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def expected(bundle: Path) -> str:
    """The text after the edit that it predicts."""
    with edgedec.load(bundle) as engine, EditPredictor(engine) as predictor:
        predictor.see(Document(BEFORE, 0, "a.py"))
        edit = predictor.update(Document(NOW, len("def greet"), "a.py")).result()
    assert edit is not None
    return edit.applied(NOW)


def opened(window: EditorWindow, folder: Path) -> DocumentEdit:
    """Returns a document of the window, once its model serves."""
    file = folder / "a.py"
    file.write_text(BEFORE)
    wait_for_another(window, None)
    window.open([file])
    edit = window.current
    assert edit is not None
    return edit


def rename(edit: DocumentEdit) -> None:
    cursor = edit.textCursor()
    cursor.setPosition(len("def "))
    cursor.setPosition(len("def hello"), QTextCursor.MoveMode.KeepAnchor)
    edit.setTextCursor(cursor)
    QTest.keyClicks(edit, "greet")


def test_an_edit_is_seen_taken_and_undone(
    open_window: Open, bundle: Path, expected: str, tmp_path: Path
) -> None:
    settings = EditorSettings(bundle=str(bundle), spelling="", typing=SILENT)
    edit = opened(open_window(settings), tmp_path)
    rename(edit)
    until(lambda: edit.next_edit.shown)
    assert edit.toPlainText() == NOW
    for _ in range(2):
        if edit.toPlainText() == NOW:  # jumps, unless the cursor is there already; then takes
            QTest.keyClick(edit, Qt.Key.Key_Tab)
    assert edit.toPlainText() == expected
    edit.undo()
    assert edit.toPlainText() == NOW


def test_edits_can_be_turned_off(open_window: Open, bundle: Path, tmp_path: Path) -> None:
    settings = EditorSettings(bundle=str(bundle), spelling="", typing=SILENT, edits="")
    window = open_window(settings)
    edit = opened(window, tmp_path)
    assert window.suggester.predictor is None
    first = window.suggester.completer
    window.follow(replace(settings, edits="instruction"))
    wait_for_another(window, first)
    edit.be_seen()
    rename(edit)
    until(lambda: edit.next_edit.shown)


def test_a_model_that_cannot_be_asked_says_so(
    open_window: Open, bundle: Path, tmp_path: Path
) -> None:
    settings = EditorSettings(bundle=str(bundle), spelling="", typing=SILENT, edits="sweep")
    window = open_window(settings)
    opened(window, tmp_path)
    assert window.suggester.predictor is None
    until(lambda: "this format of edits needs a model" in window.strip.currentMessage())
