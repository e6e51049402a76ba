"""Who computes when: steps of requests that share an engine."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

from edgedec.runtime.decoding.busy_clock import BusyClock
from edgedec.runtime.engine.pass_policy import MOST_ROWS, can_share, choose
from edgedec.runtime.sequences.passes import Pass, Passes, T, attempt, attempt_all, resume
from edgedec.runtime.sequences.rows import Rows

LINGER_S = 0.002
"""How long a pass waits for requests that have just been given a token and come back for more."""


class _Job:
    """A pass that is ready, and the thread that waits for its outcome."""

    def __init__(self, wanted: Pass) -> None:
        self.wanted = wanted
        self.outcome: Rows | BaseException | None = None
        self.waiter = threading.get_ident(), threading.Event()


class Scheduler:
    """Computes the passes of steps, those of several requests together where the model can.

    A step runs in the thread that submits it, under a lock that goes to whoever waited longest. Its
    pass is put beside those of others; the thread that finds nobody else about to bring one
    computes them all, so a single request costs no change of threads. The lock's holder may take it
    again: a handler of Ctrl-C, or of progress, may stop another stream or iterate it.
    """

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._waiting: deque[tuple[int, threading.Event]] = deque()
        self._holder: int | None = None  # thread that computes
        self._depth = 0  # times it took the lock again
        self._ready: list[_Job] = []  # the oldest first
        self._due: set[BusyClock] = set()  # of requests that may be about to come back

    @contextmanager
    def exclusive(self, clock: BusyClock | None = None) -> Iterator[None]:
        """No step runs inside the block; ``clock`` stands still until it begins."""
        self._take(clock)
        try:
            yield
        finally:
            self._give()

    def run(self, passes: Passes[T], clock: BusyClock | None = None) -> T:
        """Runs a step and returns its result; other steps go on between and beside its passes.

        clock: of the request, which stands still while only others compute.
        """
        outcome: Rows | BaseException | None = None
        if clock is not None:
            self._due.discard(clock)
            clock.is_prompt = time.perf_counter() - clock.left_s < LINGER_S
        try:
            while True:
                self._take(clock)  # without `exclusive`: a step's end is slow through contexts
                try:
                    wanted = resume(passes, outcome)
                    outcome = self._outcome(wanted, clock)
                finally:
                    self._give()
        except StopIteration as end:
            if clock is not None:
                clock.left_s = time.perf_counter()
                if clock.is_prompt:
                    self._due.add(clock)
            result: T = end.value
            return result
        finally:
            passes.close()

    @property
    def is_held(self) -> bool:
        """This thread is inside a step or `exclusive`: nobody else computes meanwhile."""
        return self._holder == threading.get_ident()

    def forget(self, clock: BusyClock) -> None:
        """Learns that a request is over, so that nobody waits for it to come back."""
        self._due.discard(clock)

    def _outcome(self, wanted: Pass, clock: BusyClock | None) -> Rows | BaseException:
        """Returns the rows of a pass, or what went wrong. The caller has the lock, then and now."""
        is_alone = not (self._ready or self._waiting or self._is_anybody_due())
        if is_alone or self._depth or not can_share(wanted):
            return attempt(wanted)
        job = _Job(wanted)
        self._ready.append(job)
        if self._waiting or self._due:
            with nullcontext() if clock is None else clock.stopped():
                self._wait_for(job)
            if clock is not None and isinstance(job.outcome, Rows):
                clock.add(job.outcome.ms)
        while job.outcome is None:
            self._compute(job)
        return job.outcome

    def _is_anybody_due(self) -> bool:
        """Says whether a request was given something so lately that it may come back at once."""
        if self._due:
            latest_s = time.perf_counter() - LINGER_S
            self._due -= {clock for clock in list(self._due) if clock.left_s < latest_s}
        return bool(self._due)

    def _wait_for(self, job: _Job) -> None:
        """Lets others go on until they computed the job, or it is time to compute it here."""
        self._give()
        try:
            job.waiter[1].wait(LINGER_S)
            with self._mutex:
                if not job.waiter[1].is_set() and job.waiter not in self._waiting:
                    self._waiting.append(job.waiter)
                    if self._holder is None:
                        self._give()
            job.waiter[1].wait()
        except BaseException as error:
            self._withdraw(job)
            job.outcome = error

    def _withdraw(self, job: _Job) -> None:
        """Takes back what an interrupted thread waits for; it has the lock then."""
        with self._mutex:
            if job in self._ready:
                self._ready.remove(job)
            if job.waiter in self._waiting:
                self._waiting.remove(job.waiter)
            if self._holder != job.waiter[0]:
                job.waiter = job.waiter[0], threading.Event()
                self._waiting.appendleft(job.waiter)
                if self._holder is None:
                    self._give()
        while not job.waiter[1].is_set():
            with suppress(BaseException):  # one interrupt is on its way already
                job.waiter[1].wait()

    def _compute(self, own: _Job) -> None:
        """Computes what the policy chooses among the passes that are ready."""
        ready = [job.wanted for job in self._ready]
        sizes = [wanted.n_rows for wanted in ready]
        most_rows = ready[0].sequence.times.most_rows(sizes, MOST_ROWS)
        chosen = [self._ready[i] for i in choose(ready, most_rows)]
        self._ready = [job for job in self._ready if job not in chosen]
        try:
            outcomes = attempt_all([job.wanted for job in chosen])
        except BaseException as error:  # an interrupt is for this thread alone
            self._ready = [job for job in (*chosen, *self._ready) if job is not own]
            own.outcome = error
            chosen, outcomes = [], []
        with self._mutex:
            for job, outcome in zip(chosen, outcomes, strict=True):
                job.outcome = outcome
            # What is left has waited for this pass, and is computed without waiting once more.
            for job in (*chosen, *self._ready[:1]):
                if job is not own and job.waiter not in self._waiting:
                    self._waiting.append(job.waiter)

    def _take(self, clock: BusyClock | None = None) -> None:
        own = threading.get_ident()
        if self._holder == own:
            self._depth += 1
            return
        with self._mutex:
            if self._holder is None:
                self._holder = own
                return
        with nullcontext() if clock is None else clock.stopped():
            self._wait(own)

    def _wait(self, own: int) -> None:
        waiter = own, threading.Event()
        try:
            with self._mutex:
                self._waiting.append(waiter)
                if self._holder is None:  # given back meanwhile
                    self._give()
            waiter[1].wait()
        except BaseException:
            self._leave(waiter)
            raise

    def _give(self) -> None:
        if self._depth:
            self._depth -= 1
            return
        with self._mutex:
            if self._waiting:
                self._holder, turn = self._waiting.popleft()
                turn.set()
            else:
                self._holder = None

    def _leave(self, waiter: tuple[int, threading.Event]) -> None:
        """Takes a waiter that was interrupted out of the queue, or passes its turn on."""
        with self._mutex:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                return
        self._give()
