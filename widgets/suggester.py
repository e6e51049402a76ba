"""An autocompleter whose offers arrive in the thread of the interface."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol

from PySide6.QtCore import QCoreApplication, QObject, Qt, Signal

from edgedec.autocomplete import AutocompleteConfig, Autocompleter, Document, Offer
from edgedec.autocomplete.edits import Edit
from edgedec.models.errors import SessionError
from edgedec.runtime.engine.engine import Engine

Receiver = Callable[[Offer | None], None]
"""Called in the thread of the interface with each offer, as it grows, or with None."""

OthersReceiver = Callable[[list[Offer]], None]
"""Called in the thread of the interface with the alternatives that were found."""

EditReceiver = Callable[[Edit], None]
"""Called in the thread of the interface with the next edit."""


class Completer(Protocol):
    """What a suggester asks: an `Autocompleter`, which documents it all, or one elsewhere."""

    @property
    def version(self) -> int:
        """The number of the latest update."""

    @property
    def reach(self) -> int:
        """Characters on either side of the cursor that are looked at."""

    def update(self, document: Document) -> Future[Offer | None]:
        """The document changed, or the cursor moved."""

    def alternatives(self) -> Future[list[Offer]]:
        """Has other ways to go on looked for."""

    def pause(self) -> None:
        """Computes no more until the next update."""

    def see(self, document: Document) -> None:
        """Takes note of another open document."""

    def forget(self, name: str) -> None:
        """A document was closed."""

    def close(self) -> None:
        """Ends what is being computed; nothing is asked any more."""


class Predictor(Protocol):
    """What a suggester asks for edits: an `EditPredictor`, which documents it all, or another."""

    def update(self, document: Document) -> Future[Edit | None]:
        """Has the next edit of a whole document looked for."""

    def pause(self) -> None:
        """Computes no more until the next update."""

    def see(self, document: Document) -> None:
        """Takes note of a whole document as it is."""

    def accept(self, edit: Edit) -> None:
        """An edit was taken."""

    def dismiss(self, edit: Edit) -> None:
        """An edit was not wanted."""

    def skip(self, edit: Edit) -> None:
        """Another edit is wanted before the document changes."""

    def forget(self, name: str) -> None:
        """A document was closed."""


class Suggester(QObject):
    """Has suggestions computed for the text fields of one application, elsewhere than there.

    Several fields may share one: the field that asked last is answered. It lives in the thread of
    the interface, and none of its calls waits for the model but `close`.

    predictor: of edits, which stays the caller's; None: there are none. is_paused: nothing is asked
    for. offered: with every offer that reached the field it was for. failed: why there will be
    none.
    """

    offered = Signal(object)
    failed = Signal(str)
    _heard = Signal(object)
    _found_others = Signal(int, object)
    _silent = Signal(int)
    _found_edit = Signal(object)

    def __init__(
        self,
        engine: Engine | None = None,
        config: AutocompleteConfig | None = None,
        parent: QObject | None = None,
    ) -> None:
        """Serves from ``engine``, which stays the caller's; None: from the first one `put`."""
        super().__init__(parent)
        self.completer: Completer | None = None
        self.predictor: Predictor | None = None
        self.is_paused = False
        self._version = 0
        self._receiver: Receiver | None = None
        self._others_receiver: OthersReceiver | None = None
        self._edit_asked: Future[Edit | None] | None = None
        self._edit_receiver: EditReceiver | None = None
        self._heard.connect(self._hand_on, Qt.ConnectionType.QueuedConnection)
        self._found_others.connect(self._hand_on_others, Qt.ConnectionType.QueuedConnection)
        self._silent.connect(self._hand_on_silence, Qt.ConnectionType.QueuedConnection)
        self._found_edit.connect(self._hand_on_edit, Qt.ConnectionType.QueuedConnection)
        if engine is not None:
            self.put(Autocompleter(engine, config, self.hear))
        if (application := QCoreApplication.instance()) is not None:
            application.aboutToQuit.connect(self.close)

    def hear(self, offer: Offer | None) -> None:
        """Takes an offer in any thread: what an autocompleter that will be `put` is made with."""
        if offer is not None:
            self._heard.emit(offer)

    def put(
        self, completer: Completer | None, predictor: Predictor | None = None
    ) -> Completer | None:
        """Serves from ``completer`` from now on; returns the one before, which is to be closed.

        predictor: of edits; it stays the caller's.
        """
        before, self.completer = self.completer, completer
        self.predictor = predictor
        self._receiver = self._others_receiver = self._edit_asked = None
        return before

    def ask(self, document: Document, receiver: Receiver) -> None:
        """Calls ``receiver`` with what is on offer for a document, until somebody asks again."""
        if self.completer is None or self.is_paused:
            return
        self._end_edit()
        try:
            answer = self.completer.update(document)
        except SessionError as error:
            self.completer = None
            self.failed.emit(str(error))
            return
        version = self._version = self.completer.version
        self._receiver = receiver
        answer.add_done_callback(lambda done: self._hear_end(version, done))

    def ask_edit(self, document: Document, receiver: EditReceiver) -> None:
        """Calls ``receiver`` with the next edit of a whole document, until somebody asks again."""
        if self.predictor is None or self.is_paused:
            return
        try:
            self._edit_asked = self.predictor.update(document)
        except SessionError as error:
            self.predictor = None
            self.failed.emit(str(error))
            return
        self._edit_receiver = receiver
        self._edit_asked.add_done_callback(self._found_edit.emit)

    def ask_others(self, receiver: OthersReceiver) -> None:
        """Calls ``receiver`` with the alternatives at the place that was asked for last."""
        if self.completer is None or self._receiver is None:
            return
        self._others_receiver, version = receiver, self._version
        with suppress(SessionError):  # the next `ask` reports it
            alternatives = self.completer.alternatives()
            alternatives.add_done_callback(lambda done: self._hear_others(version, done))

    def pause(self) -> None:
        """Computes nothing until somebody asks; an answer that is under way goes on then."""
        self._receiver = self._others_receiver = None
        self._end_edit()
        if self.completer is not None:
            self.completer.pause()

    def see(self, document: Document) -> None:
        """Takes note of another open document, of which excerpts may be read."""
        if self.completer is not None:
            self.completer.see(document)

    def forget(self, name: str) -> None:
        """A document was closed."""
        if self.completer is not None:
            self.completer.forget(name)
        if self.predictor is not None:
            self.predictor.forget(name)

    @property
    def reach(self) -> int:
        """Characters on either side of the cursor that are looked at; 0 while there is no model."""
        return 0 if self.completer is None else self.completer.reach

    def close(self) -> None:
        """Ends what is being computed, when the pass that is under way is over."""
        if (completer := self.put(None)) is not None:
            completer.close()

    def _end_edit(self) -> None:
        self._edit_asked = None
        if self.predictor is not None:
            self.predictor.pause()

    def _hear_end(self, version: int, done: Future[Offer | None]) -> None:
        if not done.cancelled() and done.result() is None:
            self._silent.emit(version)

    def _hear_others(self, version: int, done: Future[list[Offer]]) -> None:
        if not done.cancelled():
            self._found_others.emit(version, done.result())

    def _hand_on(self, offer: Offer) -> None:
        if offer.version == self._version and self._receiver is not None:
            self._receiver(offer)
            self.offered.emit(offer)

    def _hand_on_others(self, version: int, offers: list[Offer]) -> None:
        if version == self._version and self._others_receiver is not None:
            self._others_receiver(offers)

    def _hand_on_silence(self, version: int) -> None:
        if version == self._version and self._receiver is not None:
            self._receiver(None)

    def _hand_on_edit(self, done: Future[Edit | None]) -> None:
        if done is self._edit_asked and not done.cancelled():
            edit = done.result()
            if edit is not None and self._edit_receiver is not None:
                self._edit_receiver(edit)
