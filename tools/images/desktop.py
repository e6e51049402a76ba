"""Takes pictures of the window of `edgedec desktop`, with a real model's suggestions in it.

python tools/images/desktop.py code.edgedec docs/images

Without a screen, set QT_QPA_PLATFORM=offscreen; fonts are those of the machine. The pictures:
desktop-welcome, -code-light, -code-dark, -models, -settings, -find and -edit.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("QT_SCALE_FACTOR", "2")  # before Qt is there

from PySide6.QtCore import QEventLoop, Qt, QTimer
from PySide6.QtGui import QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget

from edgedec.apps.desktop.document_edit import DocumentEdit
from edgedec.apps.desktop.program import collect_here
from edgedec.apps.desktop.recovery import Recovery
from edgedec.apps.desktop.settings import EditorSettings, SettingsFile
from edgedec.apps.desktop.window import EditorWindow
from edgedec.apps.model_names import find_bundle

_REST_MS, _PATIENCE_MS = 800, 120_000
_SIZE = (980, 620)
_SMALLEST = 0
"""Quality of a PNG to Qt; no picture loses anything."""

_MIN = 20
"""Characters on offer that make a picture."""

_NAME = "qwen2.5-coder-0.5b-instruct.edgedec"
_FILES = {
    "inventory.py": '''"""Keeps count of what is in stock."""

from dataclasses import dataclass, field


@dataclass
class Item:
    """An article, and how many of it there are."""

    name: str
    price: float
    count: int = 0

    @property
    def value(self) -> float:
        """Returns what all of them cost together."""
        return self.price * self.count


@dataclass
class Inventory:
    """All articles, by name."""

    items: dict[str, Item] = field(default_factory=dict)

    def add(self, item: Item) -> None:
        """Adds an article, or more of one that is there."""
        known = self.items.setdefault(item.name, item)
        if known is not item:
            known.count += item.count

    def total(self) -> float:
        """Returns the value of all articles."""
        return sum''',
    "notes.md": "# Notes\n",
    "paint.py": '''"""How much paint a wall needs."""

LITRES_PER_SQUARE_METRE = 0.125


def litres(width, height, n_doors=0):
    """Returns the litres of paint for a wall with doors."""
    if width <= 0 or height <= 0:
        raise ValueError("a wall needs a size")
    area = width * height - 1.9 * n_doors
    return area * LITRES_PER_SQUARE_METRE


if __name__ == "__main__":
    print(litres(4.2, 2.5, n_doors=1))
''',
    "report.py": "print()\n",
    "tests/test_inventory.py": "import inventory\n",
}


def until(is_so: Callable[[], bool]) -> None:
    """Lets the interface go on until something is so."""
    loop, waited = QEventLoop(), 0
    while not is_so():
        waited += 20
        if waited > _PATIENCE_MS:
            raise SystemExit("the window did not get there")
        QTimer.singleShot(20, loop.quit)
        loop.exec()


def rest(ms: int = _REST_MS) -> None:
    """Lets the interface go on for a while."""
    QTest.qWait(ms)


class Photographer:
    """A window that remembers nothing, and where its pictures go."""

    def __init__(self, project: Path, pictures: Path, recovery: Recovery) -> None:
        self.project, self._pictures = project, pictures
        settings = EditorSettings(theme="light", folder=str(project), font_size=11)
        self.window = EditorWindow(settings, SettingsFile(project.parent), recovery)
        self.window.resize(*_SIZE)
        self.window.show()
        self.window.activateWindow()

    def take(self, name: str, widget: QWidget | None = None) -> None:
        """Takes a picture of the window, or of a part of it."""
        rest()
        image = (widget or self.window).grab().toImage()
        file = str(self._pictures / f"desktop-{name}.png")
        image.convertToFormat(QImage.Format.Format_RGB888).save(file, "PNG", _SMALLEST)

    def look(self, theme: str) -> None:
        """Turns the colours."""
        self.window.follow(replace(self.window.settings, theme=theme))

    def welcome(self) -> None:
        """Shows what a person sees first."""
        self.window.tree.hide()
        page = self.window.welcome()
        until(lambda: bool(page.chooser.list.rows))
        self.take("welcome")
        self.window.tabs.removeTab(0)
        page.deleteLater()
        self.window.tree.show()

    def code(self, bundle: Path) -> DocumentEdit:
        """Shows a program with a suggestion, in both colours; returns its document."""
        window = self.window
        window.follow(replace(window.settings, bundle=str(bundle)))
        until(lambda: window.suggester.completer is not None)
        window.open([self.project / "inventory.py"])
        edit = window.current
        assert edit is not None
        edit.moveCursor(edit.textCursor().MoveOperation.End)
        edit.setFocus()
        edit.insertPlainText("(")
        until(lambda: len(edit.offered) > _MIN)
        edit.ask()  # the model has read the file by now, as it has where somebody writes
        until(lambda: len(edit.offered) > _MIN)
        edit.centerCursor()
        self.take("code-light")
        self.look("dark")
        edit.ask()
        until(lambda: len(edit.offered) > _MIN)
        self.take("code-dark")
        return edit

    def edit(self) -> None:
        """Shows what follows after somebody has renamed a parameter."""
        self.window.open([self.project / "paint.py"])
        edit = self.window.current
        assert edit is not None
        self.look("light")
        cursor = edit.textCursor()
        start = edit.toPlainText().index("width")
        cursor.setPosition(start)
        cursor.setPosition(start + len("width"), cursor.MoveMode.KeepAnchor)
        edit.setTextCursor(cursor)
        QTest.keyClick(edit, "w")
        until(lambda: edit.offers)
        if edit.offered:
            rest()
            QTest.keyClick(edit, Qt.Key.Key_Escape)
        until(lambda: edit.next_edit.shown is not None)
        self.take("edit")
        edit.document().setModified(False)
        self.window.close_document(edit)

    def find(self, edit: DocumentEdit) -> None:
        """Shows the places of a word."""
        edit.go_to_line(18)
        self.window.find_bar.begin()
        self.window.find_bar.pattern.setText("item")
        self.window.find_bar.find_next()
        self.take("find")
        self.window.find_bar.hide()

    def dialogs(self) -> None:
        """Shows the settings and the models."""
        self.look("light")
        self.window.show_settings()
        assert self.window.settings_dialog is not None
        self.take("settings", self.window.settings_dialog)
        self.window.settings_dialog.close()
        self.window.show_models()
        models = self.window.models
        assert models is not None
        until(lambda: any(row.is_ready for row in models.chooser.list.rows))
        self.take("models", models)
        models.close()


def main(bundle: str, pictures: str) -> None:
    """Takes all pictures."""
    target, out = find_bundle(bundle).absolute(), Path(pictures).absolute()
    with tempfile.TemporaryDirectory() as name:
        project = Path(name) / "shop"
        for file, text in _FILES.items():
            (project / file).parent.mkdir(parents=True, exist_ok=True)
            (project / file).write_text(text, encoding="utf-8")
        os.environ["XDG_CACHE_HOME"] = name
        os.chdir(name)
        application = QApplication([])
        application.setCursorFlashTime(0)
        collect_here(application)
        recovery = Recovery(Path(name))
        photographer = Photographer(project, out, recovery)
        photographer.welcome()
        Path(_NAME).symlink_to(target)
        edit = photographer.code(Path(name) / _NAME)
        photographer.find(edit)
        photographer.edit()
        photographer.dialogs()
        edit.document().setModified(False)
        photographer.window.close()
        recovery.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
