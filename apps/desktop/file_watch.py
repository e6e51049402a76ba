"""Files that other programs change while they are open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QFileSystemWatcher, QObject, Signal

from edgedec.apps.desktop.document_edit import DocumentEdit

Documents = Callable[[], list[DocumentEdit]]
Try = Callable[[Callable[[], object]], bool]


class FileWatch(QObject):
    """Shows files anew that changed and were not edited here. changed: with what happened."""

    changed = Signal(str)

    def __init__(self, documents: Documents, attempt: Try, parent: QObject | None = None) -> None:
        """Takes the open documents, and what does something that may fail with a remark."""
        super().__init__(parent)
        self._documents, self._try = documents, attempt
        self._watcher = QFileSystemWatcher(self)
        self._watcher.fileChanged.connect(self._on_changed)

    def add(self, path: Path) -> None:
        """Watches a file."""
        self._watcher.addPath(str(path))

    def remove(self, path: Path) -> None:
        """Watches a file no more."""
        self._watcher.removePath(str(path))

    def _on_changed(self, name: str) -> None:
        for edit in self._documents():
            if str(edit.path) != name:
                continue
            if not Path(name).exists():
                self.changed.emit(f"{name} is gone; its text is still here")
            elif not edit.is_changed_on_disk:
                continue
            elif edit.is_modified:
                self.changed.emit(
                    f"{name} was changed by another program; what you wrote is still here"
                )
            elif self._try(edit.reload):
                self.changed.emit(f"{name} was changed by another program and is shown anew")
        if Path(name).exists():
            self._watcher.addPath(name)  # one that took its place is not watched yet
