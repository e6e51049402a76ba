"""An autocompleter of another process, as a suggester asks it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from typing import Any

from edgedec.autocomplete import Document, Offer
from edgedec.models.errors import SessionError

Ask = Callable[..., None]
"""Called with the name of a method of `model_worker.Worker`, and with its arguments."""


class RemoteCompleter:
    """Asks one of the autocompleters of a `model_worker`; none of its calls waits for an answer.

    reach, version: as of `Autocompleter`.
    """

    def __init__(self, number: int, reach: int, ask: Ask) -> None:
        """``number``: which one; its answers are to be given to `offer` and the others."""
        self.number, self.reach, self.version = number, reach, 0
        self._ask = ask
        self._failure: str | None = None
        self._alternatives: Future[list[Offer]] = Future()
        self._n_asked = 0
        self._updated_s = 0.0

    def update(self, document: Document) -> None:
        """Says that the document changed, or the cursor moved.

        Raises:
            SessionError: The engine failed.
        """
        if self._failure is not None:
            raise SessionError(self._failure)
        self._alternatives.cancel()
        self.version += 1
        self._updated_s = time.perf_counter()
        self._ask("update", number=self.number, document=asdict(document))

    def alternatives(self) -> Future[list[Offer]]:
        """Has other ways to go on looked for; cancelled by the next update, and by `pause`."""
        self._alternatives.cancel()
        self._alternatives, self._n_asked = Future(), self._n_asked + 1
        self._ask("alternatives", number=self.number, request=self._n_asked)
        return self._alternatives

    def pause(self) -> None:
        """Computes no more until the next update."""
        self._alternatives.cancel()
        self._ask("pause", number=self.number)

    def see(self, document: Document) -> None:
        """Takes note of another open document."""
        self._ask("see", number=self.number, document=asdict(document))

    def forget(self, name: str) -> None:
        """A document was closed."""
        self._ask("forget", number=self.number, name=name)

    def close(self) -> None:
        """Ends what is being computed, some time; nothing may be asked any more."""
        self._alternatives.cancel()
        self._ask("release", number=self.number)

    def offer(self, message: dict[str, Any]) -> Offer:
        """Returns an offer that came; its time is until now."""
        offer = _offer(message)
        if offer.version != self.version:
            return offer
        return replace(offer, ms=1000 * (time.perf_counter() - self._updated_s))

    def hear_alternatives(self, request: int, messages: list[dict[str, Any]]) -> None:
        """Alternatives came."""
        if request == self._n_asked and not self._alternatives.done():
            self._alternatives.set_result([_offer(message) for message in messages])

    def fail(self, reason: str) -> None:
        """The engine failed: the next update reports that."""
        self._failure = reason


def _offer(message: dict[str, Any]) -> Offer:
    parts = tuple((text, origin) for text, origin in message.pop("parts"))
    return Offer(**message, parts=parts)
