"""The editor's window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtGui import (
    QAction,
    QCloseEvent,
    QColor,
    QDragEnterEvent,
    QDropEvent,
    QGuiApplication,
    QIcon,
    QKeySequence,
)
from PySide6.QtWidgets import (
    QApplication,
    QFileDialog,
    QInputDialog,
    QMainWindow,
    QMenu,
    QTabBar,
    QTabWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from edgedec.apps.desktop import questions
from edgedec.apps.desktop.details_panel import DetailsPanel
from edgedec.apps.desktop.document_edit import DocumentEdit, Mode
from edgedec.apps.desktop.file_watch import FileWatch
from edgedec.apps.desktop.find_bar import FindBar
from edgedec.apps.desktop.folder_tree import FolderTree
from edgedec.apps.desktop.icons import make_icon
from edgedec.apps.desktop.keys_dialog import show_keys
from edgedec.apps.desktop.menus import Item, add_menu, shown_keys
from edgedec.apps.desktop.model_jobs import ModelJobs
from edgedec.apps.desktop.models_dialog import ModelsDialog
from edgedec.apps.desktop.questions import SaveAnswer
from edgedec.apps.desktop.recovery import Recovery
from edgedec.apps.desktop.served_model import ServedModel
from edgedec.apps.desktop.settings import FONT_SIZES, EditorSettings, SettingsFile
from edgedec.apps.desktop.settings_dialog import SettingsDialog
from edgedec.apps.desktop.spelling.own_words import OwnWords
from edgedec.apps.desktop.spelling.speller import Speller
from edgedec.apps.desktop.strip import Strip
from edgedec.apps.desktop.themes import Theme
from edgedec.apps.desktop.tray import Tray
from edgedec.apps.desktop.welcome_page import Start, WelcomePage
from edgedec.models.errors import EdgedecError
from edgedec.runtime.decoding.strategy import TARGET
from edgedec.widgets import Suggester

_REMARK_MS = 15_000

_CROSS = Path(__file__).with_name("close.svg")

_TREE_WIDTH = 190
"""Units: pixels."""

_CLOSE = (
    f"QTabBar::close-button {{ image: url({Path(__file__).with_name('close.svg').as_posix()}) }}"
)
"""Tabs close by a plain cross."""


class EditorWindow(QMainWindow):
    """Documents in tabs, what the model offers in them, panels, and a strip with remarks."""

    def __init__(self, settings: EditorSettings, kept_in: SettingsFile, recovery: Recovery) -> None:
        super().__init__()
        self.settings, self._kept_in, self._recovery = settings, kept_in, recovery
        self.suggester = Suggester(parent=self)
        self.speller = Speller(OwnWords(kept_in.path.with_name("words.txt")), self)
        self.theme = Theme()
        self._failure = ""  # of the model, as it was shown last
        self.model = ServedModel(self.suggester, self)
        self.tabs = QTabWidget(documentMode=True, movable=True)
        self.find_bar = FindBar(lambda: self.current, lambda: self.theme.match_colour, self)
        self.strip = Strip(self.suggester, self)
        self.details = DetailsPanel(self.model, self.strip, self.theme, self)
        self.tree = FolderTree(self)
        self.jobs = ModelJobs(self)
        self.models: ModelsDialog | None = None
        self.settings_dialog: SettingsDialog | None = None
        self.watch = FileWatch(lambda: self.documents, self._try, self)
        self._lay_out()
        self.pausing = self._make_menus()
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
        folder = Path(settings.folder)
        self.tree.follow(folder if settings.folder and folder.is_dir() else None)
        if not self.pausing.isChecked():
            self.model.want(settings)

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
        edit.textChanged.connect(self.find_bar.count_soon)
        edit.alone.connect(lambda: self.tell("This is the only suggestion"))
        self._add_tab(self.tabs.count(), edit, edit.title)
        edit.setFocus()
        return edit

    def open(self, paths: Sequence[Path]) -> None:
        """Opens files, each once, and reports those that cannot be opened."""
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
            if answer is SaveAnswer.RELOAD:
                self._try(edit.reload)
            if answer is not SaveAnswer.OVERWRITE:
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
            if answer is SaveAnswer.CANCEL or (answer is SaveAnswer.SAVE and not self.save(edit)):
                return False
        self._remove(edit)
        return True

    def open_left_behind(self) -> None:
        """Asks about text that an editor did not save before it ended badly."""
        drafts = self._recovery.left_behind()
        if not drafts:
            return
        answer = questions.ask_about_left_behind(self, [draft.title for draft in drafts])
        if answer is SaveAnswer.CANCEL:
            return
        for draft in drafts if answer is SaveAnswer.RELOAD else ():
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
        self.strip.look()
        if not is_paused:
            self.model.want(self.settings)

    def welcome(self) -> WelcomePage:
        """Shows the welcome page in a tab, once, and returns it."""
        pages = [self.tabs.widget(i) for i in range(self.tabs.count())]
        page = next((page for page in pages if isinstance(page, WelcomePage)), None)
        if page is None:
            page = WelcomePage(self.jobs, self._starts(), self.settings.recent, self)
            page.chosen.connect(self._use_bundle)
            page.opened.connect(lambda path: self.open([Path(path)]))
            self._add_tab(0, page, "Welcome")
            self.jobs.refresh()
        self.tabs.setCurrentWidget(page)
        return page

    def show_models(self) -> None:
        """Opens the model manager."""
        if self.models is None:
            self.models = ModelsDialog(self.jobs, self)
            self.models.chosen.connect(self._use_bundle)
        self.jobs.refresh()
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
        self.jobs.close()
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
        self.tabs.tabBar().setDrawBase(False)
        middle = QWidget()
        layout = QVBoxLayout(middle)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self.tabs)
        layout.addWidget(self.find_bar)
        self.find_bar.hide()
        self.setCentralWidget(middle)
        self.setStatusBar(self.strip)
        self.addDockWidget(Qt.DockWidgetArea.LeftDockWidgetArea, self.tree)
        self.resizeDocks([self.tree], [_TREE_WIDTH], Qt.Orientation.Horizontal)
        self.tree.hide()
        self.addDockWidget(Qt.DockWidgetArea.RightDockWidgetArea, self.details)
        self.details.setVisible(self.settings.has_details)

    def _make_menus(self) -> QAction:
        """Returns the action that pauses."""
        bar = self.menuBar()
        files = add_menu(bar, "&File", *self._begin_items(), *self._file_items())
        self.recent = QMenu("Open &recent", self)
        self.recent.aboutToShow.connect(self._list_recent)
        files.insertMenu(files.actions()[3], self.recent)
        add_menu(bar, "&Edit", *self._edit_items())
        view = add_menu(bar, "&View", *self._view_items())
        for panel, keys in ((self.tree, "Ctrl+B"), (self.details, "Ctrl+I")):
            turning = panel.toggleViewAction()
            turning.setShortcut(keys)
            view.addAction(turning)
        suggestions = add_menu(
            bar,
            "&Suggestions",
            ("&Models…", "Ctrl+Shift+M", self.show_models),
            ("&Settings…", "Ctrl+,", self.show_settings),
        )
        pausing = QAction("&Pause", self, checkable=True)
        pausing.setShortcut("Ctrl+Shift+P")
        pausing.toggled.connect(self.pause)
        suggestions.addAction(pausing)
        keys_item: Item = ("&Keys", "F1", lambda: show_keys(self))
        add_menu(bar, "&Help", ("&Welcome", "", self.welcome), keys_item)
        return pausing

    def _begin_items(self) -> tuple[Item, ...]:
        key = QKeySequence.StandardKey
        return (
            ("&New", key.New, self.new),
            ("&Open…", key.Open, self._ask_for_files),
            ("Open &folder…", "Ctrl+Shift+O", self._ask_for_folder),
        )

    def _file_items(self) -> tuple[Item, ...]:
        key = QKeySequence.StandardKey
        return (
            ("&Save", key.Save, self._on_current(self.save)),
            ("Save &as…", key.SaveAs, self._on_current(self.save_as)),
            ("&Close", "Ctrl+W", self._on_current(self.close_document)),
            ("&Quit", "Ctrl+Q", self.close),
        )

    def _edit_items(self) -> tuple[Item, ...]:
        key = QKeySequence.StandardKey
        return (
            ("&Undo", "", self._on_current(DocumentEdit.undo)),
            ("&Redo", "", self._on_current(DocumentEdit.redo)),
            ("&Find and replace", key.Find, self.find_bar.begin),
            ("Find &next", key.FindNext, self.find_bar.find_next),
            ("Find &previous", key.FindPrevious, self.find_bar.find_previous),
            ("&Go to line…", "Ctrl+G", self._on_current(self._ask_for_line)),
        )

    def _view_items(self) -> tuple[Item, ...]:
        key = QKeySequence.StandardKey
        return (
            ("&Prose or code", "Ctrl+M", self._turn_mode),
            ("&Light or dark", "Ctrl+Shift+D", self._turn_theme),
            ("La&rger text", key.ZoomIn, lambda: self._zoom(1)),
            ("S&maller text", key.ZoomOut, lambda: self._zoom(-1)),
        )

    def _starts(self) -> list[Start]:
        """Returns how the welcome page begins to write."""
        texts = ("New file", "Open a file…", "Open a folder…")
        items = zip(texts, self._begin_items(), strict=True)
        return [(text, shown_keys(keys), action) for text, (_, keys, action) in items]

    def _on_current(self, action: Callable[[DocumentEdit], object]) -> Callable[[], None]:
        """Returns ``action`` on the document that is seen then, if there is one."""

        def act() -> None:
            if self.current is not None:
                action(self.current)

        return act

    def _list_recent(self) -> None:
        self.recent.clear()
        for path in self.settings.recent:
            self.recent.addAction(path, partial(self.open, [Path(path)]))
        self.recent.setEnabled(True)

    def _connect(self) -> None:
        self.tabs.currentChanged.connect(self._on_turned)
        self.find_bar.closed.connect(lambda: self.current and self.current.setFocus())
        hints = QGuiApplication.styleHints()
        hints.colorSchemeChanged.connect(self._on_system_colours)
        self.suggester.failed.connect(self.tell)
        self.speller.failed.connect(self.tell)
        self.model.failed.connect(self._on_failed)
        self.model.loading.connect(lambda name: self.strip.show_loading(_shown(name)))
        self.model.serving.connect(self._on_serving)
        self.jobs.made.connect(self._use_bundle)
        self.tree.opened.connect(lambda path: self.open([Path(path)]))
        self.watch.changed.connect(self.tell)
        self.strip.pressed.connect(self._turn_suggestions)
        self.details.visibilityChanged.connect(self._remember_details)

    def _on_serving(self, name: str) -> None:
        self.strip.show_loading("")
        if self.strip.currentMessage() == self._failure:
            self.strip.clearMessage()
        self.details.show_bundle(name)
        for edit in self.documents:
            edit.be_seen()

    def _on_failed(self, reason: str) -> None:
        self.strip.show_loading("")
        self.tell(reason)
        self._failure = self.strip.currentMessage()

    def _turn_suggestions(self) -> None:
        if self.strip.has_model:
            self.pausing.toggle()
        else:
            self.welcome()

    def _remember_details(self) -> None:
        is_open = not self.details.isHidden()
        if is_open != self.settings.has_details and not self.isHidden():
            self.settings = replace(self.settings, has_details=is_open)
            self._try(lambda: self._kept_in.write(self.settings))

    def tell(self, text: str) -> None:
        """Shows a remark for a while."""
        self.strip.showMessage(" ".join(text.split()), _REMARK_MS)

    def _try(self, action: Callable[[], object]) -> bool:
        """Returns whether ``action`` was done; says why if it was not."""
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
            self.watch.add(edit.path)
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
            self.watch.remove(edit.path)
        self.find_bar.forget(edit)
        self.tabs.removeTab(self.tabs.indexOf(edit))
        edit.deleteLater()

    def _colour(self, origin: str) -> QColor:
        return self.theme.of_origin(origin if self.settings.has_colours else TARGET)

    def _ask_for_files(self) -> None:
        names, _ = QFileDialog.getOpenFileNames(self, "Open")
        self.open([Path(name) for name in names])

    def _ask_for_folder(self) -> None:
        if folder := QFileDialog.getExistingDirectory(self, "Open a folder", self.settings.folder):
            self.change(replace(self.settings, folder=folder))

    def _add_tab(self, index: int, page: QWidget, title: str) -> None:
        close = QToolButton(autoRaise=True)
        close.setToolTip("Close")
        close.setIcon(QIcon(str(_CROSS)))
        close.clicked.connect(lambda: self._close_page(page))
        index = self.tabs.insertTab(index, page, title)
        self.tabs.tabBar().setTabButton(index, QTabBar.ButtonPosition.RightSide, close)
        self.tabs.setCurrentWidget(page)

    def _close_page(self, page: QWidget) -> None:
        if isinstance(page, DocumentEdit):
            self.close_document(page)
        else:
            self.tabs.removeTab(self.tabs.indexOf(page))
            page.deleteLater()

    def _on_turned(self) -> None:
        self._show_title()
        self.find_bar.count_soon()
        if self.current is not None:
            self.current.setFocus()

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


def _shown(bundle: str) -> str:
    """Returns what a bundle is called where there is little room."""
    return Path(bundle).name.removesuffix(".edgedec")
