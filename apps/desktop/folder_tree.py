"""The files of a folder, beside the text."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QModelIndex, Signal
from PySide6.QtWidgets import QDockWidget, QFileSystemModel, QTreeView, QWidget


class FolderTree(QDockWidget):
    """Shows a folder. opened: with the path of a file that was chosen."""

    opened = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("Folder", parent)
        self.setObjectName("folder")
        self._folder: Path | None = None
        self.files: QFileSystemModel | None = None
        self.view = QTreeView(headerHidden=True)
        self.view.activated.connect(self._open)
        self.view.clicked.connect(self._open)
        self.setWidget(self.view)

    def follow(self, folder: Path | None) -> None:
        """Shows ``folder``; None: nothing."""
        if folder == self._folder:
            return
        self._folder = folder
        if folder is None:
            self.hide()
            return
        if self.files is None:  # begins a thread that watches, which most windows do without
            self.files = QFileSystemModel(self)
            self.view.setModel(self.files)
            for column in range(1, self.files.columnCount()):
                self.view.hideColumn(column)
        self.setWindowTitle(folder.name or str(folder))
        self.toggleViewAction().setText("Folder")
        self.view.setRootIndex(self.files.setRootPath(str(folder)))
        self.show()

    def _open(self, index: QModelIndex) -> None:
        if self.files is not None and not self.files.isDir(index):
            self.opened.emit(self.files.filePath(index))
