"""The model behind a language server: loaded beside the editor's messages, again when replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from edgedec.apps.kept_texts.places import remember_prefixes
from edgedec.apps.kept_texts.remarks import remember_typing
from edgedec.apps.lsp.settings import ServerSettings
from edgedec.apps.lsp.window import EditorProgress, EditorWindow
from edgedec.apps.model_names import find_bundle
from edgedec.apps.typing.bundle_stamp import Stamp, stamp_of
from edgedec.apps.typing.typing_memory import TypingMemory
from edgedec.autocomplete import Autocompleter, LearnedOffers
from edgedec.autocomplete.edits import EditHistory, EditPredictor
from edgedec.models.errors import ConfigError, EdgedecError
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions

if TYPE_CHECKING:
    from edgedec.apps.typing.idle_training import IdleTraining

_LOOK_S = 1.0
"""How often, at most, it is looked whether the bundle was replaced."""


@dataclass(frozen=True)
class _Target:
    settings: ServerSettings
    roots: tuple[Path, ...]


@dataclass(frozen=True)
class _Source:
    """What an engine was loaded from, and how."""

    folder: Path
    stamp: Stamp
    threads: int | None
    context: int | None
    prefix_disk_mb: int
    memory: TypingMemory


class ServedModel:
    """The autocompleter of the newest settings. All of it happens in the server's event loop.

    completer: None while there is none: before the first bundle is loaded, or where that failed.
    predictor: of edits; None as well where the settings or the model have none.
    history: what was edited; it outlives predictors.
    """

    def __init__(self, window: EditorWindow) -> None:
        self.completer: Autocompleter | None = None
        self.predictor: EditPredictor | None = None
        self.history = EditHistory()
        self._no_edits: EdgedecError | None = None  # why there is no predictor; not said yet
        self._window = window
        self._engine: Engine | None = None
        self._source: _Source | None = None  # of the engine
        self._learned: LearnedOffers | None = None
        self._seen: Stamp = None  # of its bundle, when last looked at
        self._newest: _Target | None = None
        self._is_news = False
        self._work: asyncio.Task[None] | None = None
        self._looked_s = 0.0
        self._training: IdleTraining | None = None
        self._idly: tuple[Path, TypingMemory, float] | None = None  # what it is for
        self._replacing = asyncio.Lock()
        self._is_settled = asyncio.Event()  # nothing is being loaded, nor will be by itself

    def want(self, settings: ServerSettings, roots: Sequence[Path]) -> None:
        """Has the model follow ``settings``; returns at once, and what there is serves until then.

        roots: folders in which a relative path of a bundle is looked for.
        """
        self._begin(_Target(settings, tuple(roots)))

    async def serving(self) -> Autocompleter | None:
        """Returns the autocompleter; while one takes another's place, waits for the new one."""
        async with self._replacing:
            return self.completer

    async def predicting(self) -> EditPredictor | None:
        """Returns the predictor of edits; if the model cannot be asked for them, says why, once.

        Waits for the first model, for no editor asks again before the next key.
        """
        if self.predictor is None:
            await self._is_settled.wait()
        async with self._replacing:
            if self._no_edits is not None:
                self._window.error(self._no_edits)
                self._no_edits = None
            return self.predictor

    def look(self) -> None:
        """Loads the bundle again if another has taken its place; looks now and then only."""
        now_s = time.monotonic()
        if self._source is None or self._newest is None or now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        folder = self._source.folder
        stamp = stamp_of(folder)
        if stamp == self._seen or self._is_busy:
            return
        self._seen = stamp
        if stamp is None:
            self._window.note(f"{folder} is gone; the loaded model stays in use")
        else:
            self._window.note(f"{folder} was replaced and is loaded again")
            self._begin(self._newest)

    def stir(self) -> None:
        """Somebody types: nothing is learned meanwhile."""
        if self._training is not None:
            self._training.stir()

    def fail(self, error: EdgedecError) -> None:
        """Says that the completer works no more; other settings may mend it."""
        self.completer = self._source = None
        self._window.error(error)

    def fail_edits(self, error: EdgedecError) -> None:
        """Says that the predictor works no more; suggestions go on."""
        self.predictor = None
        self._window.error(error)

    async def close(self) -> None:
        """Ends what is being computed."""
        if self._work is not None:
            self._work.cancel()
        self._is_settled.set()
        await self._stop_training()
        await self._put(None, None)

    @property
    def _is_busy(self) -> bool:
        return self._work is not None and not self._work.done()

    def _begin(self, task: _Target) -> None:
        self._newest, self._is_news = task, True
        self._is_settled.clear()
        if not self._is_busy:
            self._work = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        while self._is_news and self._newest is not None:
            self._is_news = False
            try:
                await self._make(self._newest)
            except EdgedecError as error:
                self._window.error(error)
            except Exception as error:
                self._window.error(EdgedecError(f"unexpected {type(error).__name__}: {error}"))
        self._is_settled.set()

    async def _make(self, task: _Target) -> None:
        settings = task.settings
        if not settings.bundle:
            raise ConfigError("no bundle is set: start edgedec lsp BUNDLE, or set edgedec.bundle")
        folder = await asyncio.to_thread(find_bundle, settings.bundle, task.roots)
        memory = settings.memory
        source = _Source(
            folder,
            stamp_of(folder),
            settings.threads,
            settings.context,
            settings.prefix_disk,
            memory,
        )
        if self._engine is not None and source == self._source:
            replay = await asyncio.to_thread(memory.replay, folder)
            completer = Autocompleter(
                self._engine, settings.typing, learned=self._learned, replay=replay
            )
            await self._put(self._engine, completer, settings)
            await self._train_idly(folder, settings)
            return
        progress = self._window.progress(f"loading {folder.name}")
        try:
            engine = await self._load(source, progress)
            try:
                learned = memory.learned()
                replay = await asyncio.to_thread(memory.replay, folder)
                completer = Autocompleter(engine, settings.typing, learned=learned, replay=replay)
            except EdgedecError:
                engine.close()
                raise
            await self._put(engine, completer, settings)
            self._source, self._seen, self._learned = source, source.stamp, learned
        finally:
            progress.end()
        await self._train_idly(folder, settings)

    async def _train_idly(self, folder: Path, settings: ServerSettings) -> None:
        """Has the head of a bundle improved while nobody types, if settings ask for it."""
        trained_for = folder, settings.memory, settings.typing.max_idle_cpu
        if trained_for == self._idly:
            return
        loop = asyncio.get_running_loop()

        def tell(text: str) -> None:
            with suppress(RuntimeError):  # the server has ended meanwhile
                loop.call_soon_threadsafe(self._window.note, text)

        await self._stop_training()
        self._idly = trained_for
        memory, share = settings.memory, settings.typing.max_idle_cpu
        self._training = await asyncio.to_thread(memory.idle_training, folder, share, tell)

    async def _stop_training(self) -> None:
        training, self._training, self._idly = self._training, None, None
        if training is not None:
            await asyncio.to_thread(training.close)

    async def _load(self, source: _Source, progress: EditorProgress) -> Engine:
        loop = asyncio.get_running_loop()

        def report(phase: str, done: int, total: int) -> None:
            loop.call_soon_threadsafe(progress.report, done, total)

        usual = EngineOptions(
            threads=source.threads, context=source.context, prefix_disk_mb=source.prefix_disk_mb
        )
        for remark in (
            remember_prefixes(source.prefix_disk_mb),
            *remember_typing(source.memory.learn, source.memory.session, source.memory.adapt),
        ):
            if remark:
                self._window.note(remark)
        options = source.memory.options(source.folder, usual)
        engine = await asyncio.to_thread(partial(load, source.folder, options, report))
        await self._try(partial(source.memory.recall, engine, source.folder))
        return engine

    async def _try(self, action: Callable[[], None]) -> None:
        """Does something that may fail with no more than a remark."""
        try:
            await asyncio.to_thread(action)
        except EdgedecError as error:
            self._window.error(error)

    async def _put(
        self,
        engine: Engine | None,
        completer: Autocompleter | None,
        settings: ServerSettings | None = None,
    ) -> None:
        """Serves with these from now on, and closes those before; once begun, to the end."""
        await asyncio.shield(self._replace(engine, completer, settings))

    async def _replace(
        self,
        engine: Engine | None,
        completer: Autocompleter | None,
        settings: ServerSettings | None,
    ) -> None:
        async with self._replacing:
            old_engine, self._engine = self._engine, engine
            old_completer, self.completer = self.completer, None
            old_predictor, self.predictor = self.predictor, None
            if old_predictor is not None:
                await asyncio.to_thread(old_predictor.close)
            if old_completer is not None:  # first, for the new one may have the same engine
                await asyncio.to_thread(old_completer.close)
            self.completer = completer
            if engine is not None and settings is not None and settings.edits:
                self._predict_with(engine, settings)
            if old_engine is not None and old_engine is not engine:
                if (source := self._source) is not None and old_completer is not None:
                    prompts = old_completer.prompts
                    await self._try(partial(source.memory.keep, old_engine, source.folder, prompts))
                await asyncio.to_thread(old_engine.close)

    def _predict_with(self, engine: Engine, settings: ServerSettings) -> None:
        self._no_edits = None
        try:
            self.predictor = EditPredictor(engine, settings.edit_config, self.history)
        except ConfigError as error:
            self._no_edits = error
