"""The model behind the window: loaded in another thread, again where settings ask for it."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject, Qt, QTimer, Signal

from edgedec.apps.bundle_stamp import Stamp, stamp_of
from edgedec.apps.editor.settings import EditorSettings
from edgedec.apps.model_names import find_bundle
from edgedec.apps.typing_memory import TypingMemory
from edgedec.autocomplete import AutocompleteConfig, Autocompleter, LearnedOffers
from edgedec.models.errors import EdgedecError
from edgedec.runtime.engine import Engine
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.widgets import Suggester

_LOOK_S = 0.05
"""How often it is looked, while the interface is waited for, whether it has ended."""

_REPLACED_MS = 1000
"""How often it is looked whether the bundle was replaced."""

_NICENESS = 5
"""Of the model's threads; that of the interface is 0."""


@dataclass(frozen=True)
class _Source:
    """What an engine is loaded from, and how."""

    bundle: str
    threads: int | None
    context: int | None
    memory: TypingMemory


class ServedModel(QObject):
    """Makes a suggester follow the settings. What there is serves until the next is there.

    loading: with the name of a bundle that is being loaded. serving: with the one that is served;
    empty where none is. failed: why settings cannot be followed, or that the bundle is another now.
    """

    loading = Signal(str)
    serving = Signal(str)
    failed = Signal(str)
    _made = Signal(object, object)

    def __init__(self, suggester: Suggester, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._suggester = suggester
        self._newest: tuple[_Source, AutocompleteConfig] | None = None
        self._engine: Engine | None = None  # of the worker's thread, and its source
        self._source: _Source | None = None
        self._learned: LearnedOffers | None = None
        self._completer: Autocompleter | None = None
        self._loaded: tuple[Path, Stamp] | None = None  # the newest bundle that could be
        self._is_closed = False
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="model", initializer=_yield)
        self._made.connect(self._put, Qt.ConnectionType.QueuedConnection)
        looking = QTimer(self, interval=_REPLACED_MS)
        looking.timeout.connect(self._look)
        looking.start()

    def want(self, settings: EditorSettings) -> None:
        """Has the model follow ``settings``; returns at once."""
        source = _Source(settings.bundle, settings.threads, settings.context, settings.memory)
        wanted = source, settings.typing
        if wanted == self._newest or not settings.bundle:
            return
        self._newest = wanted
        self._worker.submit(self._follow, *wanted)

    def close(self) -> None:
        """Ends what is being computed, and releases the model. Closing twice is fine."""
        if self._is_closed:
            return
        self._is_closed = True
        self._suggester.close()
        self._worker.submit(self._release)
        self._worker.shutdown()

    def _look(self) -> None:
        """Loads the bundle again if another has taken its place."""
        if self._loaded is None or self._newest is None or self._is_closed:
            return
        folder, stamp = self._loaded
        if (now := stamp_of(folder)) == stamp:
            return
        self._loaded = folder, now
        if now is None:
            self.failed.emit(f"{folder} is gone; what was loaded of it goes on")
        else:
            self.failed.emit(f"{folder} was replaced and is loaded again")
            self._worker.submit(self._follow, *self._newest, is_anew=True)

    def _follow(self, source: _Source, typing: AutocompleteConfig, is_anew: bool = False) -> None:
        if self._is_closed or (source, typing) != self._newest:
            return  # there are newer ones
        try:
            self._make(source, typing, is_anew)
        except EdgedecError as error:
            self.failed.emit(str(error))
        except Exception as error:
            self.failed.emit(f"unexpected {type(error).__name__}: {error}")

    def _make(self, source: _Source, typing: AutocompleteConfig, is_anew: bool) -> None:
        engine, learned = self._engine, self._learned
        if engine is None or source != self._source or is_anew:
            self.loading.emit(source.bundle)
            learned = source.memory.learned()
            engine = self._load(source)
        try:
            completer = Autocompleter(engine, typing, self._suggester.hear, learned)
        except EdgedecError:
            if engine is not self._engine:
                engine.close()
            raise
        old_engine, self._engine = self._engine, engine
        old_completer, self._completer = self._completer, completer
        old_source, self._source, self._learned = self._source, source, learned
        self._hand_over(completer)
        if old_completer is not None:
            old_completer.close()
        if old_engine is not None and old_source is not None and old_engine is not engine:
            self._keep(old_source, old_engine, old_completer)
            old_engine.close()
        self.serving.emit(source.bundle)

    def _load(self, source: _Source) -> Engine:
        bundle = find_bundle(source.bundle)
        usual = EngineOptions(threads=source.threads, context=source.context)
        stamp = stamp_of(bundle)
        engine = load(bundle, source.memory.options(bundle, usual))
        self._loaded = bundle, stamp
        self._try(partial(source.memory.recall, engine, bundle))
        return engine

    def _keep(self, source: _Source, engine: Engine, completer: Autocompleter | None) -> None:
        """Writes down what an engine has read, if that is wanted."""
        prompts = {} if completer is None else completer.prompts
        self._try(lambda: source.memory.keep(engine, find_bundle(source.bundle), prompts))

    def _try(self, action: Callable[[], None]) -> None:
        """Does something that may fail with no more than a remark."""
        try:
            action()
        except EdgedecError as error:
            self.failed.emit(str(error))

    def _hand_over(self, completer: Autocompleter) -> None:
        """Waits until the suggester has it, and no longer uses the one before."""
        is_put = threading.Event()
        self._made.emit(completer, is_put)
        while not (is_put.wait(_LOOK_S) or self._is_closed):
            pass

    def _put(self, completer: Autocompleter, is_put: threading.Event) -> None:
        if not self._is_closed:
            self._suggester.put(completer)
            gc.freeze()  # what a model is made of is not looked through every few seconds
            is_put.set()

    def _release(self) -> None:
        if self._completer is not None:
            self._completer.close()
        if self._engine is not None and self._source is not None:
            self._keep(self._source, self._engine, self._completer)
            self._engine.close()


def _yield() -> None:
    """Lets the interface go first, before this thread and those that it will begin."""
    if sys.platform == "linux":  # elsewhere it would be the whole process
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
