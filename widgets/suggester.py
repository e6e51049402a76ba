"""An autocompleter whose offers arrive in the thread of the interface."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol

from PySide6.QtCore import QCoreApplication, QObject, Qt, Signal

from edgedec.autocomplete import AutocompleteConfig, Autocompleter, Document, Offer
from edgedec.models.errors import SessionError
from edgedec.runtime.engine.engine import Engine

Receiver = Callable[[Offer], None]
"""Called in the thread of the interface with each offer, as it grows."""

OthersReceiver = Callable[[list[Offer]], None]
"""Called in the thread of the interface with the alternatives that were found."""


class Completer(Protocol):
    """What a suggester asks: an `Autocompleter`, which documents it all, or one elsewhere."""

    @property
    def version(self) -> int:
        """The number of the latest update."""

    @property
    def reach(self) -> int:
        """Characters on either side of the cursor that are looked at."""

    def update(self, document: Document) -> object:
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


class Suggester(QObject):
    """Has suggestions computed for the text fields of one application, elsewhere than there.

    Several fields may share one: the field that asked last is answered. It lives in the thread of
    the interface, and none of its calls waits for the model but `close`.

    is_paused: nothing is asked for. offered: with every offer that reached the field it was for.
    failed: why there will be none.
    """

    offered = Signal(object)
    failed = Signal(str)
    _heard = Signal(object)
    _found_others = Signal(int, object)

    def __init__(
        self,
        engine: Engine | None = None,
        config: AutocompleteConfig | None = None,
        parent: QObject | None = None,
    ) -> None:
        """Serves from ``engine``, which stays the caller's; None: from the first one `put`."""
        super().__init__(parent)
        self.completer: Completer | None = None
        self.is_paused = False
        self._version = 0
        self._receiver: Receiver | None = None
        self._others_receiver: OthersReceiver | None = None
        self._heard.connect(self._hand_on, Qt.ConnectionType.QueuedConnection)
        self._found_others.connect(self._hand_on_others, Qt.ConnectionType.QueuedConnection)
        if engine is not None:
            self.put(Autocompleter(engine, config, self.hear))
        if (application := QCoreApplication.instance()) is not None:
            application.aboutToQuit.connect(self.close)

    def hear(self, offer: Offer | None) -> None:
        """Takes an offer in any thread: what an autocompleter that will be `put` is made with."""
        if offer is not None:
            self._heard.emit(offer)

    def put(self, completer: Completer | None) -> Completer | None:
        """Serves from ``completer`` from now on; returns the one before, which is to be closed."""
        before, self.completer = self.completer, completer
        self._receiver = self._others_receiver = None
        return before

    def ask(self, document: Document, receiver: Receiver) -> None:
        """Calls ``receiver`` with what is on offer for a document, until somebody asks again."""
        if self.completer is None or self.is_paused:
            return
        try:
            self.completer.update(document)
        except SessionError as error:
            self.completer = None
            self.failed.emit(str(error))
            return
        self._version, self._receiver = self.completer.version, receiver

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

    @property
    def reach(self) -> int:
        """Characters on either side of the cursor that are looked at; 0 while there is no model."""
        return 0 if self.completer is None else self.completer.reach

    def close(self) -> None:
        """Ends what is being computed, when the pass that is under way is over."""
        if (completer := self.put(None)) is not None:
            completer.close()

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
