"""A program of its own that has the model, so that no window or key waits for what a model does.

python -m edgedec.apps.typing.model_worker

It reads a JSON object a line, {"do": name} with what that needs: `Worker` has a method for each
name. What happens it writes likewise, {"tell": name}. It ends with its standard input, so that a
program that crashes does not leave it behind.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from edgedec.apps.model_names import find_bundle
from edgedec.apps.typing.bundle_stamp import stamp_of
from edgedec.apps.typing.typing_memory import TypingMemory
from edgedec.autocomplete import AutocompleteConfig, Autocompleter, Document, LearnedOffers, Offer
from edgedec.autocomplete.edits import Edit, EditConfig, EditHistory, EditPredictor
from edgedec.models.errors import ConfigError, EdgedecError, SessionError
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.system.processes import step_back
from edgedec.system.streams import claim_stdout

if TYPE_CHECKING:
    from edgedec.apps.typing.idle_training import IdleTraining

_NICENESS = 5
"""Of the model's threads; the window's is 0."""

_COUNTS_S = 1.0
"""How often the window gets these counts."""

Tell = Callable[..., None]
"""Called in any thread with the name of what happened, and with what belongs to it."""


@dataclass(frozen=True)
class Source:
    """What an engine is loaded from, and how."""

    bundle: str
    threads: int | None
    context: int | None
    memory: TypingMemory


@dataclass(frozen=True)
class _Served:
    """An autocompleter, and what it stands on. predictor: of edits, on the same engine."""

    engine: Engine
    source: Source
    learned: LearnedOffers | None
    completer: Autocompleter
    predictor: EditPredictor | None


class Worker:
    """Has autocompleters by their numbers: the one that serves, and the one before until let go.

    Loading and closing happen in a thread of their own; what there is serves meanwhile.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._served: dict[int, _Served] = {}
        self._newest: _Served | None = None
        self._n_made = 0
        self._n_wanted = 0
        self._is_ended = False
        self._history = EditHistory()
        self._training: IdleTraining | None = None
        self._idly: tuple[Path, TypingMemory, float] | None = None  # what it is for
        self._changing = threading.Lock()  # of what is served; not held while a bundle is loaded
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        for target in (self._do_work, self._tell_counts):
            threading.Thread(target=target, daemon=True).start()

    def follow(
        self, source: dict[str, Any], typing: dict[str, Any], edits: str, is_anew: bool
    ) -> None:
        """Serves as settings say from some time on.

        edits: the format in which the model is asked for them; empty: never.
        is_anew: even if the bundle is the same.
        """
        self._n_wanted += 1
        new_source = Source(**{**source, "memory": TypingMemory(**source["memory"])})
        config = AutocompleteConfig(**typing)
        self._work.put(partial(self._follow, self._n_wanted, new_source, config, edits, is_anew))

    def update(self, number: int, request: int, document: dict[str, Any]) -> None:
        """A document changed, or its cursor moved; ``request`` tells it apart."""
        if self._training is not None:
            self._training.stir()

        def answer(done: Future[Offer | None]) -> None:
            if not done.cancelled() and done.result() is None:
                self._tell("silence", number=number, request=request)

        try:
            self._served[number].completer.update(Document(**document)).add_done_callback(answer)
        except SessionError as error:
            self._tell("ended", number=number, reason=str(error))

    def edit(self, number: int, request: int, document: dict[str, Any]) -> None:
        """Looks for the next edit of a document, which is whole; ``request`` tells it apart."""

        def answer(done: Future[Edit | None]) -> None:
            if not done.cancelled():
                edit = done.result()
                message = None if edit is None else asdict(edit)
                self._tell("edit", number=number, request=request, edit=message)

        if (predictor := self._served[number].predictor) is not None:
            try:
                predictor.update(Document(**document)).add_done_callback(answer)
            except SessionError as error:
                self._tell("failed", reason=str(error))

    def judge_edit(self, number: int, what: str, edit: dict[str, Any]) -> None:
        """What became of an edit: `EditPredictor` has a method for it."""
        if (predictor := self._served[number].predictor) is not None:
            getattr(predictor, what)(Edit(**edit))

    def pause_edits(self, number: int) -> None:
        """Predicts nothing until somebody asks for the next edit."""
        if (predictor := self._served[number].predictor) is not None:
            predictor.pause()

    def see_edited(self, document: dict[str, Any]) -> None:
        """Takes note of a whole document as it is, so that later changes of it are known."""
        self._history.see(Document(**document))

    def forget_edited(self, name: str) -> None:
        """A document whose edits were predicted was closed."""
        self._history.forget(name)

    def alternatives(self, number: int, request: int) -> None:
        """Looks for alternatives at the place of the latest update; ``request`` tells it apart."""

        def answer(done: Future[list[Offer]]) -> None:
            if not done.cancelled():
                offers = [asdict(offer) for offer in done.result()]
                self._tell("alternatives", number=number, request=request, offers=offers)

        with suppress(SessionError):  # the next update reports it
            self._served[number].completer.alternatives().add_done_callback(answer)

    def pause(self, number: int) -> None:
        """Computes nothing until the next update."""
        self._served[number].completer.pause()

    def see(self, number: int, document: dict[str, Any]) -> None:
        """Takes note of another open document."""
        self._served[number].completer.see(Document(**document))

    def forget(self, number: int, name: str) -> None:
        """A document was closed."""
        self._served[number].completer.forget(name)

    def release(self, number: int) -> None:
        """Nobody asks an autocompleter any more."""
        self._work.put(partial(self._release, number))

    def end(self) -> None:
        """Ends what is being computed and keeps what is to be kept; what is loaded is let go."""
        with self._changing:
            self._is_ended = True
            if self._training is not None:
                self._training.close()
            newest, self._newest = self._newest, None
            if newest is not None and not self._is_needed(newest.engine):  # released before
                self._let_go(newest)
        for number in list(self._served):
            self._release(number)

    def _do_work(self) -> None:
        while True:
            try:
                self._work.get()()
            except EdgedecError as error:
                self._tell("failed", reason=str(error))
            except Exception as error:
                self._tell("failed", reason=f"unexpected {type(error).__name__}: {error}")

    def _follow(
        self, request: int, source: Source, typing: AutocompleteConfig, edits: str, anew: bool
    ) -> None:
        if request != self._n_wanted:
            return  # there are newer ones
        newest, folder = self._newest, find_bundle(source.bundle)
        stamp = stamp_of(folder)
        if newest is None or source != newest.source or anew:
            self._tell("loading", bundle=source.bundle)
            learned, engine = source.memory.learned(), self._load(source)
        else:
            learned, engine = newest.learned, newest.engine
        number = self._n_made + 1
        try:
            replay = source.memory.replay(folder)
            completer = Autocompleter(engine, typing, partial(self._offer, number), learned, replay)
        except EdgedecError:
            if newest is None or engine is not newest.engine:
                engine.close()
            raise
        predictor, refusal = self._predictor(engine, edits)
        with self._changing:
            if self._is_ended:
                return
            served = _Served(engine, source, learned, completer, predictor)
            self._n_made, self._newest = number, served
            self._served[number] = served
        about = {"bundle": source.bundle, "folder": str(folder), "stamp": stamp}
        has_edits = predictor is not None
        self._tell("serving", number=number, reach=completer.reach, has_edits=has_edits, **about)
        if refusal:
            self._tell("failed", reason=refusal)
        self._train_idly(folder, source.memory, typing.max_idle_cpu)

    def _train_idly(self, folder: Path, memory: TypingMemory, share: float) -> None:
        """Has the head of a bundle improved while nobody types, if that is wanted."""
        trained_for = folder, memory, share
        if trained_for != self._idly:
            if self._training is not None:
                self._training.close()
            self._idly = trained_for
            self._training = memory.idle_training(folder, share, self._tell_reason)

    def _tell_reason(self, reason: str) -> None:
        self._tell("failed", reason=reason)

    def _predictor(self, engine: Engine, edits: str) -> tuple[EditPredictor | None, str]:
        """Returns what predicts edits, if that is wanted; or why the model cannot be asked."""
        if not edits:
            return None, ""
        try:
            return EditPredictor(engine, EditConfig(format=edits), self._history), ""
        except ConfigError as error:
            return None, str(error)

    def _load(self, source: Source) -> Engine:
        bundle = find_bundle(source.bundle)
        usual = EngineOptions(threads=source.threads, context=source.context)
        engine = load(bundle, source.memory.options(bundle, usual))
        self._try(partial(source.memory.recall, engine, bundle))
        return engine

    def _release(self, number: int) -> None:
        with self._changing:
            served = self._served.pop(number, None)
            if served is None:
                return
            if served.predictor is not None:
                served.predictor.close()
            served.completer.close()
            if not self._is_needed(served.engine):
                self._let_go(served)

    def _is_needed(self, engine: Engine) -> bool:
        """Returns whether an engine serves, or is what the next autocompleter would stand on."""
        served = [*self._served.values(), *([self._newest] if self._newest else [])]
        return any(engine is model.engine for model in served)

    def _let_go(self, served: _Served) -> None:
        """Writes down what an engine has read, if that is wanted, and closes it."""
        memory, prompts = served.source.memory, served.completer.prompts
        self._try(lambda: memory.keep(served.engine, find_bundle(served.source.bundle), prompts))
        served.engine.close()

    def _try(self, action: Callable[[], None]) -> None:
        """Does something that may fail with no more than a remark."""
        try:
            action()
        except EdgedecError as error:
            self._tell("failed", reason=str(error))

    def _offer(self, number: int, offer: Offer | None) -> None:
        if offer is not None:
            self._tell("offer", number=number, offer=asdict(offer))

    def _tell_counts(self) -> None:
        while True:
            time.sleep(_COUNTS_S)
            if (newest := self._newest) is not None:
                counts = newest.completer.counts
                done = {"n_drafted": counts.n_drafted, "n_accepted": counts.n_accepted}
                origins = dict(counts.origins)
                self._tell("counts", cpu_s=time.process_time(), origins=origins, **done)


def serve(lines: IO[str], out: IO[str]) -> None:
    """Does what the lines say until they end."""
    writing = threading.Lock()

    def tell(name: str, /, **what: object) -> None:
        line = json.dumps({"tell": name, **what}) + "\n"
        with writing, suppress(OSError):  # the window is gone: the end of the lines is near
            out.write(line)
            out.flush()

    worker = Worker(tell)
    for line in lines:
        message = json.loads(line)
        getattr(worker, message.pop("do"))(**message)
    worker.end()


def main() -> None:
    """Serves standard input and output; returns never."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal sends them to the window as well
        signal.signal(number, signal.SIG_IGN)
    step_back(_NICENESS)
    out = os.fdopen(claim_stdout(), "w", encoding="utf-8")
    serve(sys.stdin, out)
    os._exit(0)  # a bundle may still be loading, for which nobody waits


if __name__ == "__main__":
    main()
