"""Suggestions at the cursor while somebody types."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from typing import Self

from edgedec.autocomplete.alternatives import Alternatives, Unwanted
from edgedec.autocomplete.answer import Continuation
from edgedec.autocomplete.config import AutocompleteConfig
from edgedec.autocomplete.document import Document, Window
from edgedec.autocomplete.journal import Journal
from edgedec.autocomplete.layout import PromptLayout
from edgedec.autocomplete.learned import LearnedOffers
from edgedec.autocomplete.offer import Offer, TypingCounts
from edgedec.autocomplete.reading import ReadPrompts
from edgedec.autocomplete.written_texts import WrittenTexts
from edgedec.models.errors import EdgedecError, SessionError
from edgedec.runtime.backends import running_passes as running_passes
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.checks import check_callable, check_type
from edgedec.runtime.config.suggestion import SuggestConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.replay_buffer import ReplayBuffer
from edgedec.system.power import PowerSource

_PASS_MS = 40.0  # of a prompt that is being read; a key that ends a pass loses what is in it
_LIKELY = 0.5  # of a line on offer, for the next one to be computed before it is taken
_AHEAD_S = 0.6  # of processors' time, between two keys, for what is beyond a line on offer

_NOWHERE = Document("", 0)
"""Where nothing is offered."""

OnOffer = Callable[[Offer | None], None]
"""Called in the autocompleter's own thread with each offer; with None where there is none."""


class Autocompleter:
    """Keeps a suggestion for the newest state of a document. It owns a thread, not the engine.

    A key that types what is on offer costs nothing; any other ends what is being computed within a
    pass of the model, and a cursor that goes elsewhere in the midst of one. The model goes on
    beyond the line on offer, for a share of the time, so that the next line is there when this one
    has been taken.
    """

    def __init__(
        self,
        engine: Engine,
        config: AutocompleteConfig | None = None,
        on_offer: OnOffer = lambda offer: None,
        learned: LearnedOffers | None = None,
        replay: ReplayBuffer | None = None,
    ) -> None:
        """Starts the thread.

        learned: learns from what becomes of offers, as does the engine's n-gram store, and raises
            the probability that an offer needs.
        replay: keeps what is written, for a draft head to learn from.
        """
        check_callable("on_offer", on_offer)
        self._engine = engine
        self._config = AutocompleteConfig() if config is None else config
        self._on_offer = on_offer
        self._layout = PromptLayout(engine, self._config)
        engine.check_sequential("suggestions while typing")
        self._alternatives = Alternatives(engine, self._layout, self._config)
        self._learned = learned
        self._journal = None
        if learned is not None:
            self._journal = Journal(learned, engine.tokenizer, engine.learn)
        self._written = None
        if replay is not None:
            self._written = WrittenTexts(replay, self._layout.prompt)
        self._power = PowerSource()
        self.counts = TypingCounts()
        self._changed = threading.Condition()
        self._next_document: Document | None = None  # not looked at yet
        self._document = _NOWHERE  # that was looked at last, and what is read of it
        self._answer: Continuation | None = None
        self._window: Window | None = None
        self._future: Future[Offer | None] = Future()
        self._alternatives_future: Future[list[Offer]] = Future()
        self._n_asked = 0  # alternatives that were asked for and not looked for yet
        self._place = _NOWHERE
        self._version = 0
        self._updated_s = self._ended_s = self._ahead_s = 0.0
        self._shown: tuple[int, str, bool] | None = None
        self._failure: str | None = None
        self._is_paused = self._is_closed = False
        self._reading = ReadPrompts()
        self._thread = threading.Thread(target=self._work, name="autocomplete", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, document: Document) -> Future[Offer | None]:
        """Says that the document changed, or the cursor moved; returns at once.

        Returns:
            The complete offer for this state, or None where there is none; cancelled by the next
            update. `asyncio.wrap_future` makes it awaitable.

        Raises:
            SessionError: The autocompleter is closed, or the engine failed.
        """
        check_type("document", document, Document, "a Document")
        with self._changed:
            self._check_open()
            self._cancel()
            self._future = Future()
            self._version += 1
            self._updated_s = time.perf_counter()
            self._next_document = self._place = document
            self._is_paused = False
            self.counts.n_updates += 1
            if self._answer is None or not self._answer.is_near(document):
                self._end_pass()  # else it may bring what was typed, or reads what stays
            self._changed.notify()
            return self._future

    def alternatives(self, k: int = 4) -> Future[list[Offer]]:
        """Has other ways to go on looked for, at the place of the latest update.

        Returns:
            At most ``k`` offers with different beginnings, the likeliest first; cancelled by the
            next update, and by `pause`.

        Raises:
            SessionError: as of `update`.
        """
        SuggestConfig(k=k)  # which refuses numbers that cannot be
        with self._changed:
            self._check_open()
            self._alternatives_future.cancel()
            self._alternatives_future, self._n_asked = Future(), k
            self._is_paused = False
            self._changed.notify()
            return self._alternatives_future

    @property
    def version(self) -> int:
        """The number of the latest update, which offers for it have."""
        return self._version

    @property
    def reach(self) -> int:
        """Characters on either side of the cursor beyond which no document is looked at."""
        return self._layout.reach

    @property
    def prompts(self) -> dict[str, list[int]]:
        """What the model read last of each document, the latest last. Units: token ids."""
        return self._reading.prompts

    def pause(self) -> None:
        """Computes no more until the next update, which may go on with what there is."""
        with self._changed:
            self._cancel()
            self._is_paused = True

    def dismiss(self) -> None:
        """Ends what is being computed; nothing is offered until the next update."""
        with self._changed:
            self._cancel()
            self._version += 1
            self._next_document = self._place = _NOWHERE
            self._is_paused = False
            self._end_pass()
            self._changed.notify()

    def see(self, document: Document) -> None:
        """Takes note of another open document, of which excerpts may be read from now on.

        Documents that an update named need not be shown again.
        """
        self._layout.others.see(document)

    def forget(self, name: str) -> None:
        """A document was closed."""
        self._layout.forget(name)

    def close(self) -> None:
        """Ends what is being computed, and the thread. Closing twice is fine."""
        with self._changed:
            self._is_closed = True
            self._cancel()
            self._end_pass()
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _check_open(self) -> None:
        self._layout.check()
        if self._is_closed or self._failure:
            raise SessionError(self._failure or "the autocompleter is closed: make another")

    def _cancel(self) -> None:
        self._future.cancel()
        self._alternatives_future.cancel()
        self._n_asked = 0

    def _end_pass(self) -> None:
        """Ends a pass that nobody wants, in the midst of it; it raises in the thread."""
        self._ended_s = time.perf_counter()
        if not running_passes.end_passes(thread=self._thread.ident):
            self._ended_s = 0.0

    def _work(self) -> None:
        try:
            while self._take():
                try:
                    if self._n_asked:
                        self._look_for_alternatives()
                    else:
                        self._go_on()
                except KeyboardInterrupt:  # what `_end_pass` raises
                    self._begin_anew()
        except BaseException as error:
            with self._changed:
                self._failure = f"autocomplete ended: {error}"
                self._cancel()
            if not isinstance(error, EdgedecError):  # a caller's own, which is to be seen
                raise
        finally:
            if self._answer is not None:
                self._answer.stream.stop()
            if self._journal is not None:
                self._journal.close()
            if self._written is not None:
                self._written.close()

    def _take(self) -> bool:
        """Waits for something to do and notes what is wanted; False when closed."""
        with self._changed:
            while not (self._is_closed or self._has_work):
                self._changed.wait()
            document, self._next_document, self._ended_s = self._next_document, None, 0.0
            waited_s = time.perf_counter() - self._updated_s
        if self._is_closed:
            return False
        if document is not None:
            self.counts.wait_ms.append(1000 * waited_s)
            self._turn_to(document)
        return True

    @property
    def _has_work(self) -> bool:
        if self._is_paused:
            return False
        if self._next_document is not None or self._n_asked > 0:
            return True
        answer = self._answer
        if answer is None or answer.is_ended:
            return False
        return self._ahead_s < _AHEAD_S or not answer.is_line_whole

    def _turn_to(self, document: Document) -> None:
        """Keeps the answer in the making if it still fits, begins another if not."""
        window = self._layout.window(document)
        self._document, self._window, self._ahead_s = document, window, 0.0
        if self._journal is not None:
            self._journal.write(window)
        if self._written is not None:
            self._written.write(window)
        if self._answer is not None and self._answer.follow(window):
            self.counts.n_agreeing += 1
        else:
            self._begin(document, window)
        self._show()

    def _begin_anew(self) -> None:
        """A pass was ended: what comes next is what is wanted by now, or what it was for."""
        self.counts.n_stopped += 1
        if self._ended_s:
            self.counts.cancel_ms.append(1000 * (time.perf_counter() - self._ended_s))
        self._end()
        if self._window is not None and self._next_document is None and not self._is_closed:
            self._begin(self._document, self._window)

    def _begin(self, document: Document, window: Window) -> None:
        if self._answer is not None:
            self.counts.n_stopped += not self._answer.is_ended
            self._end()
        whole, half = self._layout.split(window)
        tokens = self._layout.prompt(whole)
        if not tokens:
            return
        self._reading.begin(window.name, tokens)
        stream = self._engine.stream(tokens, self._request(half), self._on_chunk)
        stream.watch()
        self._answer = Continuation(document, whole, half, stream, self._asked_config)
        self.counts.n_requests += 1

    @property
    def _asked_config(self) -> AutocompleteConfig:
        """The configuration, with the least probability that was learned."""
        if self._learned is None:
            return self._config
        least = self._learned.threshold(self._config.min_probability)
        return replace(self._config, min_probability=least)

    def _request(self, half_word: str) -> GenerationConfig:
        return GenerationConfig(
            max_new_tokens=self._config.max_new_tokens,
            stop_token_ids=self._layout.stops,
            method=self._config.method,
            prefix=half_word,
            prefill_pass_ms=_PASS_MS,
            is_one_of_many=True,
        )

    def _on_chunk(self, phase: str, done: int, total: int) -> None:
        """Ends a prompt that is being read for what nobody wants any more; its rows stay known."""
        answer = self._answer
        with self._changed:
            is_other = self._next_document is not None and self._next_document != self._document
            is_stale = is_other or self._is_paused or self._is_closed
        if answer is not None and is_stale:
            self.counts.n_stopped += 1
            answer.stop()

    def _go_on(self) -> None:
        """Computes a piece of the answer; beyond what is on offer, slowly."""
        answer = self._answer
        if answer is None or answer.is_ended:
            return
        is_idle, started_s = answer.is_line_whole, time.perf_counter()
        spent_s = time.process_time()
        if is_idle and not self._looks_ahead(answer):
            answer.is_ended = True
        elif answer.advance():
            self._show()
        if answer.is_ended:
            self._end_of(answer)
        elif is_idle:
            self._ahead_s += time.process_time() - spent_s
            self._rest(time.perf_counter() - started_s)

    def _looks_ahead(self, answer: Continuation) -> bool:
        """Says whether what comes after the line on offer is likely enough to be wanted."""
        config = self._config
        if config.max_idle_cpu == 0 or (config.rests_on_battery and self._power.is_battery):
            return False
        return answer.probability >= _LIKELY

    def _look_for_alternatives(self) -> None:
        with self._changed:
            n, self._n_asked = self._n_asked, 0
            request, place, version = self._alternatives_future, self._place, self._version
        self._end()  # what it has read is the alternatives' as well
        try:
            alternatives = self._alternatives.find(
                place, version, n, lambda: not request.cancelled()
            )
        except (Unwanted, KeyboardInterrupt):
            request.cancel()
            return
        with suppress(InvalidStateError):  # it may be cancelled in between
            request.set_result(alternatives)

    def _rest(self, busy_s: float) -> None:
        """Waits for so long that ``busy_s`` is no more than the share of idle time allowed."""
        with self._changed:
            if self._next_document is None and not (self._n_asked or self._is_closed):
                self._changed.wait(busy_s / self._config.max_idle_cpu - busy_s)

    def _end_of(self, answer: Continuation) -> None:
        answer.stream.stop()
        self.counts.add(answer.stream.result, answer.n_shown)
        self._show()

    def _end(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.is_ended:
            answer.stream.stop()
            self.counts.add(answer.stream.result, answer.n_shown)

    def _show(self) -> None:
        """Tells of what is on offer, if that is news."""
        answer = self._answer
        with self._changed:
            if self._next_document is not None or self._is_paused or self._is_closed:
                return
            version, future, since_s = self._version, self._future, self._updated_s
        text = "" if answer is None else answer.rest
        is_complete = answer is None or answer.is_line_whole
        if (version, text, is_complete) == self._shown or not (text or is_complete):
            return
        self._shown = version, text, is_complete
        offer = None
        if answer is not None and text.strip():
            answer.note_shown()
            ms = 1000 * (time.perf_counter() - since_s)
            offer = Offer(text, version, is_complete, answer.probability, ms, answer.parts)
            if self._journal is not None and self._window is not None:
                self._journal.offer(self._window, text, answer.probability)
        self._on_offer(offer)
        if is_complete and not future.done():
            with suppress(InvalidStateError):  # the next update may cancel it in between
                future.set_result(offer)
