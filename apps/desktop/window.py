"""The editor's window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from PySide6.QtCore import QFileSystemWatcher
from PySide6.QtGui import (
    QAction,
    QCloseEvent,
    QColor,
    QDragEnterEvent,
    QDropEvent,
    QGuiApplication,
    QKeySequence,
)
from PySide6.QtWidgets import (
    QApplication,
    QFileDialog,
    QInputDialog,
    QMainWindow,
    QMenu,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from edgedec.apps.desktop import questions
from edgedec.apps.desktop.document_edit import DocumentEdit, Mode
from edgedec.apps.desktop.find_bar import FindBar
from edgedec.apps.desktop.keys_dialog import show_keys
from edgedec.apps.desktop.menus import add_menu
from edgedec.apps.desktop.models_dialog import ModelsDialog
from edgedec.apps.desktop.questions import Answer
from edgedec.apps.desktop.recovery import Recovery
from edgedec.apps.desktop.served_model import ServedModel
from edgedec.apps.desktop.settings import FONT_SIZES, EditorSettings, SettingsFile
from edgedec.apps.desktop.settings_dialog import SettingsDialog
from edgedec.apps.desktop.spelling.own_words import OwnWords
from edgedec.apps.desktop.spelling.speller import Speller
from edgedec.apps.desktop.strip import Strip
from edgedec.apps.desktop.themes import Theme
from edgedec.apps.desktop.tray import Tray, make_icon
from edgedec.models.errors import EdgedecError
from edgedec.runtime.decoding.strategy import TARGET
from edgedec.widgets import Suggester

_REMARK_MS = 15_000


class EditorWindow(QMainWindow):
    """Documents in tabs, what the model offers in them, and a strip that tells what happened."""

    def __init__(self, settings: EditorSettings, kept_in: SettingsFile, recovery: Recovery) -> None:
        super().__init__()
        self.settings, self._kept_in, self._recovery = settings, kept_in, recovery
        self.suggester = Suggester(parent=self)
        self.speller = Speller(OwnWords(kept_in.path.with_name("words.txt")), self)
        self.theme = Theme()
        self.model = ServedModel(self.suggester, self)
        self.tabs = QTabWidget(documentMode=True, movable=True, tabsClosable=True)
        self.find_bar = FindBar(lambda: self.current, self)
        self.strip = Strip(self.suggester, self.model, self.theme, self)
        self.models: ModelsDialog | None = None
        self.settings_dialog: SettingsDialog | None = None
        self._watcher = QFileSystemWatcher(self)
        self._lay_out()
        self._make_menus()
        self.tray = Tray(self, self.pausing, self._come_up)
        self._connect()
        self.follow(settings)

    @property
    def current(self) -> DocumentEdit | None:
        """The document that is seen."""
        edit = self.tabs.currentWidget()
        return edit if isinstance(edit, DocumentEdit) else None

    @property
    def documents(self) -> list[DocumentEdit]:
        """All documents, in the order of their tabs."""
        edits = [self.tabs.widget(i) for i in range(self.tabs.count())]
        return [edit for edit in edits if isinstance(edit, DocumentEdit)]

    def follow(self, settings: EditorSettings) -> None:
        """Makes everything as the settings say, at once."""
        self.settings = settings
        application = QApplication.instance()
        assert isinstance(application, QApplication)
        self.theme.apply(application, settings.theme)
        self.speller.follow(settings.spelling)
        for edit in self.documents:
            edit.follow(settings)
        if not self.pausing.isChecked():
            self.model.want(settings)
        if not settings.bundle:
            self.strip.model.setText("no model: choose one in Models")

    def change(self, settings: EditorSettings) -> None:
        """As `follow`, and remembers the settings."""
        self.follow(settings)
        self._try(lambda: self._kept_in.write(settings))

    def new(self) -> DocumentEdit:
        """Returns an empty document in a tab of its own."""
        edit = DocumentEdit(self.suggester, self._recovery, self.speller)
        edit.colour = self._colour
        edit.follow(self.settings)
        edit.modificationChanged.connect(lambda: self._name(edit))
        self.tabs.addTab(edit, edit.title)
        self.tabs.setCurrentWidget(edit)
        edit.setFocus()
        return edit

    def open(self, paths: Sequence[Path]) -> None:
        """Opens files, each once; what cannot be opened is told."""
        for path in paths:
            path = path.absolute()
            known = [edit for edit in self.documents if edit.path == path]
            if known:
                self.tabs.setCurrentWidget(known[0])
                continue
            edit = self._empty() or self.new()
            if not self._try(partial(edit.open, path)):
                self._remove(edit)
                continue
            self._settle(edit)

    def save(self, edit: DocumentEdit, path: Path | None = None) -> bool:
        """Saves a document and returns whether that was done; asks for what is not clear."""
        if path is None and edit.path is None:
            return self.save_as(edit)
        if path is None and edit.is_changed_on_disk:
            answer = questions.ask_about_changed(self, edit.title)
            if answer is Answer.RELOAD:
                self._try(edit.reload)
            if answer is not Answer.OVERWRITE:
                return False
        is_saved = self._try(lambda: edit.save(path))
        self._settle(edit)
        return is_saved

    def save_as(self, edit: DocumentEdit) -> bool:
        """Saves a document under a name that is asked for; returns whether that was done."""
        name, _ = QFileDialog.getSaveFileName(self, "Save as", str(edit.path or ""))
        return bool(name) and self.save(edit, Path(name))

    def close_document(self, edit: DocumentEdit) -> bool:
        """Closes a document, unless it is unsaved and shall stay; returns whether it is closed."""
        if edit.is_modified:
            self.tabs.setCurrentWidget(edit)
            answer = questions.ask_about_unsaved(self, edit.title)
            if answer is Answer.CANCEL or (answer is Answer.SAVE and not self.save(edit)):
                return False
        self._remove(edit)
        return True

    def open_left_behind(self) -> None:
        """Asks about text that an editor did not save before it ended badly."""
        drafts = self._recovery.left_behind()
        if not drafts:
            return
        answer = questions.ask_about_left_behind(self, [draft.title for draft in drafts])
        if answer is Answer.CANCEL:
            return
        for draft in drafts if answer is Answer.RELOAD else ():
            edit = self._empty() or self.new()
            edit.restore(draft)
            self._settle(edit)
        self._recovery.forget_left_behind()

    def keep_unsaved(self) -> None:
        """Has all unsaved text written down now."""
        for edit in self.documents:
            edit.keep()

    def pause(self, is_paused: bool) -> None:
        """Computes nothing, or what is needed again."""
        self.suggester.is_paused = is_paused
        if self.current is not None:
            self.current.refuse()
        self.tray.show_paused(is_paused)
        self.strip.offer.setText("paused" if is_paused else "")
        if not is_paused:
            self.model.want(self.settings)

    def show_models(self) -> None:
        """Opens the model manager."""
        if self.models is None:
            self.models = ModelsDialog(self)
            self.models.chosen.connect(self._use_bundle)
        self.models.refresh()
        self.models.show()

    def show_settings(self) -> None:
        """Opens the settings."""
        if self.settings_dialog is not None:
            self.settings_dialog.deleteLater()
        self.settings_dialog = SettingsDialog(self.settings, self)
        self.settings_dialog.changed.connect(lambda change: self.change(change(self.settings)))
        self.settings_dialog.show()

    def closeEvent(self, event: QCloseEvent) -> None:  # noqa: N802
        """Closes all documents, or stays where one shall; then ends the model."""
        for edit in self.documents:
            if not self.close_document(edit):
                event.ignore()
                return
        self.hide()
        self.end()
        event.accept()

    def end(self) -> None:
        """Ends what runs for the window."""
        if self.models is not None:
            self.models.close_jobs()
        self.speller.close()
        self.model.close()

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:  # noqa: N802
        """Takes files."""
        if event.mimeData().hasUrls():
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:  # noqa: N802
        """Opens the files that are dropped."""
        self.open([Path(url.toLocalFile()) for url in event.mimeData().urls() if url.isLocalFile()])

    def _lay_out(self) -> None:
        self.setWindowTitle("edgedec")
        self.setWindowIcon(make_icon())
        self.resize(900, 640)
        self.setAcceptDrops(True)
        middle = QWidget()
        layout = QVBoxLayout(middle)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self.tabs)
        layout.addWidget(self.find_bar)
        self.find_bar.hide()
        self.setCentralWidget(middle)
        self.setStatusBar(self.strip)

    def _make_menus(self) -> None:
        bar, key = self.menuBar(), QKeySequence.StandardKey
        files = add_menu(
            bar,
            "&File",
            ("&New", key.New, lambda: self.new()),
            ("&Open…", key.Open, self._ask_for_files),
            ("&Save", key.Save, self._on_current(self.save)),
            ("Save &as…", key.SaveAs, self._on_current(self.save_as)),
            ("&Close", key.Close, self._on_current(self.close_document)),
            ("&Quit", key.Quit, self.close),
        )
        self.recent = QMenu("Open &recent", self)
        self.recent.aboutToShow.connect(self._list_recent)
        files.insertMenu(files.actions()[2], self.recent)
        add_menu(
            bar,
            "&Edit",
            ("&Undo", "", self._on_current(DocumentEdit.undo)),
            ("&Redo", "", self._on_current(DocumentEdit.redo)),
            ("&Find and replace", key.Find, self.find_bar.begin),
            ("Find &next", key.FindNext, self.find_bar.find_next),
            ("&Go to line…", "Ctrl+G", self._on_current(self._ask_for_line)),
        )
        add_menu(
            bar,
            "&View",
            ("&Prose or code", "Ctrl+M", self._turn_mode),
            ("&Light or dark", "Ctrl+Shift+D", self._turn_theme),
            ("&Larger text", key.ZoomIn, lambda: self._zoom(1)),
            ("&Smaller text", key.ZoomOut, lambda: self._zoom(-1)),
        )
        suggestions = add_menu(
            bar,
            "&Suggestions",
            ("&Models…", "", self.show_models),
            ("&Settings…", key.Preferences, self.show_settings),
        )
        add_menu(bar, "&Help", ("&Keys", "F1", lambda: show_keys(self)))
        self.pausing = QAction("&Pause", self, checkable=True)
        self.pausing.setShortcut("Ctrl+Shift+P")
        self.pausing.toggled.connect(self.pause)
        suggestions.addAction(self.pausing)

    def _on_current(self, action: Callable[[DocumentEdit], object]) -> Callable[[], None]:
        """Returns ``action`` on the document that is seen then, if there is one."""

        def act() -> None:
            if self.current is not None:
                action(self.current)

        return act

    def _connect(self) -> None:
        self.tabs.tabCloseRequested.connect(self._close_tab)
        self.tabs.currentChanged.connect(self._on_turned)
        self.find_bar.closed.connect(lambda: self.current and self.current.setFocus())
        hints = QGuiApplication.styleHints()
        hints.colorSchemeChanged.connect(self._on_system_colours)
        self.suggester.failed.connect(self.tell)
        self.speller.failed.connect(self.tell)
        self.model.failed.connect(self.tell)
        self.model.loading.connect(
            lambda name: self.strip.model.setText(f"loading {Path(name).name} …")
        )
        self.model.serving.connect(self._on_serving)
        self._watcher.fileChanged.connect(self._on_file_changed)

    def _on_serving(self, name: str) -> None:
        self.strip.model.setText(Path(name).name)
        for edit in self.documents:
            edit.be_seen()

    def tell(self, text: str) -> None:
        """Shows a remark for a while."""
        self.strip.showMessage(" ".join(text.split()), _REMARK_MS)

    def _try(self, action: Callable[[], object]) -> bool:
        """Returns whether ``action`` was done; tells why where it was not."""
        try:
            action()
        except EdgedecError as error:
            self.tell(str(error))
            return False
        return True

    def _empty(self) -> DocumentEdit | None:
        """Returns the document that is seen if nobody has written in it."""
        edit = self.current
        is_empty = edit is not None and edit.path is None and not edit.toPlainText()
        return edit if is_empty else None

    def _settle(self, edit: DocumentEdit) -> None:
        """A document has a file, which is to be watched."""
        edit.follow(self.settings)
        edit.be_seen()
        self._name(edit)
        if edit.path is not None and edit.path.exists():
            self._watcher.addPath(str(edit.path))
            self._remember(edit.path)

    def _remember(self, path: Path) -> None:
        if self.settings.recent[:1] != (str(path),):
            self.settings = self.settings.with_recent(path)
            self._try(lambda: self._kept_in.write(self.settings))

    def _name(self, edit: DocumentEdit) -> None:
        self.tabs.setTabText(self.tabs.indexOf(edit), edit.title + " •" * edit.is_modified)
        self._show_title()

    def _remove(self, edit: DocumentEdit) -> None:
        edit.forget_draft()
        self.suggester.forget(edit.name)
        if edit.path is not None:
            self._watcher.removePath(str(edit.path))
        self.tabs.removeTab(self.tabs.indexOf(edit))
        edit.deleteLater()

    def _colour(self, origin: str) -> QColor:
        return self.theme.of_origin(origin if self.settings.has_colours else TARGET)

    def _ask_for_files(self) -> None:
        names, _ = QFileDialog.getOpenFileNames(self, "Open")
        self.open([Path(name) for name in names])

    def _close_tab(self, index: int) -> None:
        edit = self.tabs.widget(index)
        if isinstance(edit, DocumentEdit):
            self.close_document(edit)

    def _on_turned(self) -> None:
        self._show_title()
        if self.current is not None:
            self.current.setFocus()

    def _on_file_changed(self, name: str) -> None:
        """Another program wrote to a file: what was not edited here is shown anew."""
        for edit in self.documents:
            if str(edit.path) != name:
                continue
            if not Path(name).exists():
                self.tell(f"{name} is gone; its text is still here")
            elif not edit.is_changed_on_disk:
                continue
            elif edit.is_modified:
                self.tell(f"{name} was changed by another program; what you wrote is still here")
            elif self._try(edit.reload):
                self.tell(f"{name} was changed by another program and is shown as it is now")
        if Path(name).exists():
            self._watcher.addPath(name)  # one that took its place is not watched yet

    def _turn_mode(self) -> None:
        if (edit := self.current) is not None:
            edit.mode = Mode.CODE if edit.mode is Mode.PROSE else Mode.PROSE
            edit.follow(self.settings)

    def _turn_theme(self) -> None:
        other = "light" if self.theme.is_dark else "dark"
        self.change(replace(self.settings, theme=other))

    def _on_system_colours(self) -> None:
        self.follow(self.settings)

    def _zoom(self, step: int) -> None:
        size = min(max(self.settings.font_size + step, FONT_SIZES[0]), FONT_SIZES[1])
        self.change(replace(self.settings, font_size=size))

    def _ask_for_line(self, edit: DocumentEdit) -> None:
        here, n = edit.textCursor().blockNumber() + 1, edit.blockCount()
        number, is_given = QInputDialog.getInt(self, "Go to line", f"Line (1-{n})", here, 1, n)
        if is_given:
            edit.go_to_line(number)

    def _list_recent(self) -> None:
        self.recent.clear()
        for path in self.settings.recent:
            self.recent.addAction(path, partial(self.open, [Path(path)]))
        self.recent.setEnabled(True)

    def _show_title(self) -> None:
        edit = self.current
        self.setWindowModified(edit is not None and edit.is_modified)
        self.setWindowTitle("edgedec" if edit is None else f"{edit.title}[*] - edgedec")

    def _use_bundle(self, bundle: str) -> None:
        self.change(replace(self.settings, bundle=bundle))

    def _come_up(self) -> None:
        self.show()
        self.raise_()
        self.activateWindow()
