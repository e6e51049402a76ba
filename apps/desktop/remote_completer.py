"""An autocompleter and a predictor of edits of another process, as a suggester asks them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from typing import Any

from edgedec.autocomplete import Document, Offer
from edgedec.autocomplete.edits import Edit
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
        self._offer: Future[Offer | None] = Future()
        self._alternatives: Future[list[Offer]] = Future()
        self._n_asked = 0
        self._updated_s = 0.0

    def update(self, document: Document) -> Future[Offer | None]:
        """Says that the document changed, or the cursor moved.

        Returns:
            None, where nothing is on offer; offers come elsewhere. Cancelled by the next update.

        Raises:
            SessionError: The engine failed.
        """
        if self._failure is not None:
            raise SessionError(self._failure)
        self._cancel()
        self._offer = Future()
        self.version += 1
        self._updated_s = time.perf_counter()
        request, text = self.version, asdict(document)
        self._ask("update", number=self.number, request=request, document=text)
        return self._offer

    def alternatives(self) -> Future[list[Offer]]:
        """Has other ways to go on looked for; cancelled by the next update, and by `pause`."""
        self._alternatives.cancel()
        self._alternatives, self._n_asked = Future(), self._n_asked + 1
        self._ask("alternatives", number=self.number, request=self._n_asked)
        return self._alternatives

    def pause(self) -> None:
        """Computes no more until the next update."""
        self._cancel()
        self._ask("pause", number=self.number)

    def see(self, document: Document) -> None:
        """Takes note of another open document."""
        self._ask("see", number=self.number, document=asdict(document))

    def forget(self, name: str) -> None:
        """A document was closed."""
        self._ask("forget", number=self.number, name=name)

    def close(self) -> None:
        """Ends what is being computed, some time; nothing may be asked any more."""
        self._cancel()
        self._ask("release", number=self.number)

    def offer(self, message: dict[str, Any]) -> Offer:
        """Returns an offer that came; its time is until now."""
        offer = _offer(message)
        if offer.version != self.version:
            return offer
        return replace(offer, ms=1000 * (time.perf_counter() - self._updated_s))

    def hear_silence(self, request: int) -> None:
        """Nothing is on offer for an update."""
        if request == self.version and not self._offer.done():
            self._offer.set_result(None)

    def hear_alternatives(self, request: int, messages: list[dict[str, Any]]) -> None:
        """Alternatives came."""
        if request == self._n_asked and not self._alternatives.done():
            self._alternatives.set_result([_offer(message) for message in messages])

    def fail(self, reason: str) -> None:
        """The engine failed: the next update reports that."""
        self._failure = reason

    def _cancel(self) -> None:
        self._offer.cancel()
        self._alternatives.cancel()


class RemotePredictor:
    """Asks the predictor of edits beside an autocompleter of a `model_worker`."""

    def __init__(self, number: int, ask: Ask) -> None:
        self._number, self._ask = number, ask
        self._edit: Future[Edit | None] = Future()
        self._n_asked = 0

    def update(self, document: Document) -> Future[Edit | None]:
        """Returns the next edit of a document, which is whole; cancelled by the next update."""
        self._edit.cancel()
        self._edit, self._n_asked = Future(), self._n_asked + 1
        request, text = self._n_asked, asdict(document)
        self._ask("edit", number=self._number, request=request, document=text)
        return self._edit

    def pause(self) -> None:
        """Computes no more until the next update."""
        if not self._edit.done():
            self._edit.cancel()
            self._ask("pause_edits", number=self._number)

    def see(self, document: Document) -> None:
        """Takes note of a document as it is."""
        self._ask("see_edited", document=asdict(document))

    def accept(self, edit: Edit) -> None:
        """An edit was taken."""
        self._judge("accept", edit)

    def dismiss(self, edit: Edit) -> None:
        """An edit was not wanted."""
        self._judge("dismiss", edit)

    def skip(self, edit: Edit) -> None:
        """Another edit is wanted before the document changes."""
        self._judge("skip", edit)

    def forget(self, name: str) -> None:
        """A document was closed."""
        self._ask("forget_edited", name=name)

    def hear(self, request: int, message: dict[str, Any] | None) -> None:
        """An edit came, or that there is none."""
        if request == self._n_asked and not self._edit.done():
            self._edit.set_result(None if message is None else Edit(**message))

    def _judge(self, what: str, edit: Edit) -> None:
        self._ask("judge_edit", number=self._number, what=what, edit=asdict(edit))


def _offer(message: dict[str, Any]) -> Offer:
    parts = tuple((text, origin) for text, origin in message.pop("parts"))
    return Offer(**message, parts=parts)
