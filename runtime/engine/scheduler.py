"""Who computes when: steps of requests that share an engine."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from edgedec.runtime.decoding.busy_clock import BusyClock
from edgedec.runtime.engine.pass_policy import MAX_ROWS, Waiting, can_share, choose
from edgedec.runtime.sequences.passes import (
    Pass,
    Passes,
    T,
    attempt,
    attempt_all,
    run_passes,
)
from edgedec.runtime.sequences.rows import Rows

LINGER_S = 0.002
"""How long a pass waits for requests that have just been given a token and come back for more."""


class _Job:
    """A step on its way, and the thread that waits for its end.

    is_pinned: no other thread runs it. is_batch: nobody waits for what it is part of.
    waits_since_s: when it began to wait for its turn; 0 while it does not wait.
    """

    turn: threading.Event
    """The step is over, or the owner has the lock and leads. There while the owner waits for it."""

    def __init__(
        self, passes: Passes[Any], clock: BusyClock | None, is_pinned: bool, is_batch: bool
    ) -> None:
        self.passes = passes
        self.clock = clock
        self.is_pinned = is_pinned
        self.is_batch = is_batch
        self.n_passed_over = 0  # passes of others since it wants one
        self.owner = threading.get_ident()
        self.pass_: Pass | None = None
        self.outcome: Rows | BaseException | None = None  # of the pass that was wanted last
        self.interrupt: BaseException | None = None  # came while the owner waited
        self.is_over = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.waits_since_s = 0.0

    @property
    def is_of_main(self) -> bool:
        """The main thread waits for it."""
        return self.owner == threading.main_thread().ident

    def go_on(self) -> Pass | None:
        """Runs the step up to the next pass it wants, and returns that; None at its end."""
        if self.waits_since_s:
            self._stop_waiting()
        outcome = self.outcome if self.interrupt is None else self.interrupt
        self.outcome = self.interrupt = self.pass_ = None
        try:
            if outcome is None:
                self.pass_ = next(self.passes)
            elif isinstance(outcome, BaseException):
                self.pass_ = self.passes.throw(outcome)
            else:
                self.pass_ = self.passes.send(outcome)
            self.n_passed_over = 0
        except StopIteration as end:
            self.result, self.is_over = end.value, True
        except BaseException as error:  # the owner's, in whichever thread it comes
            self.error, self.is_over = error, True
        return self.pass_

    def compute(self) -> None:
        """Computes the wanted pass by itself, in the request's own time."""
        assert self.pass_ is not None
        self._stop_waiting()
        self.outcome = attempt(self.pass_)
        self.wait()

    def wait(self) -> None:
        """Begins to wait for its turn; the request's clock stands still until that comes."""
        self.waits_since_s = time.perf_counter()

    def take(self, outcome: Rows | BaseException) -> None:
        """Takes what became of the wanted pass, which others may have shared."""
        self.outcome = outcome
        if self.clock is not None and isinstance(outcome, Rows):
            self.clock.add(outcome.ms)

    def _stop_waiting(self) -> None:
        if self.clock is not None:
            self.clock.skip(time.perf_counter() - self.waits_since_s)
        self.waits_since_s = 0.0

    def taken(self) -> Any:
        """Returns the result of a step that is over, or raises what ended it."""
        error = self.interrupt if self.error is None else self.error
        self.error = self.interrupt = None
        if error is None:
            return self.result
        try:
            raise error
        finally:
            del error  # it keeps this frame


class Scheduler:
    """Computes the passes of steps, those of several requests together where the model can.

    One thread leads: it runs the steps of all threads that wait for one, one step after the other,
    up to the passes they want, and computes those. A lock is its as long as it leads; between steps
    and passes it lets in who waits for the lock, the longest first. When its own step is over,
    another of the waiting threads leads. So a single request costs no change of threads, and many
    cost few. The lock's holder may take it again: a handler of Ctrl-C, or of progress, may stop
    another stream or iterate it.

    The main thread runs no steps of others, for an interrupt may come there at any moment.
    """

    def __init__(self, between: Callable[[], None] = lambda: None) -> None:
        """between: called behind each pass, for small work that has to be done some time."""
        self._between = between
        self._mutex = threading.RLock()
        self._waiting: deque[tuple[int, threading.Event]] = deque()
        self._holder: int | None = None  # thread that has the lock
        self._depth = 0  # times it took the lock again
        self._leader: _Job | None = None  # whose owner leads, or is about to
        self._runnable: deque[_Job] = deque()  # can go on
        self._ready: list[_Job] = []  # want a pass, the oldest first
        self._due: set[BusyClock] = set()  # of requests that may be about to come back
        self._has_come = threading.Event()  # somebody whom the leader waits for

    @contextmanager
    def exclusive(self, clock: BusyClock | None = None) -> Iterator[None]:
        """No step runs inside the block; ``clock`` stands still until it begins."""
        self._take(clock)
        try:
            yield
        finally:
            self._give()

    def run(
        self,
        passes: Passes[T],
        clock: BusyClock | None = None,
        *,
        is_pinned: bool = False,
        is_batch: bool = False,
    ) -> T:
        """Runs a step and returns its result; other steps go on between and beside its passes.

        Args:
            clock: Of the request, which stands still while only others compute.
            is_pinned: The step runs in this thread. Otherwise it may run in any that calls this.
            is_batch: Nobody waits for what the step is part of; others go first.
        """
        now_s = time.perf_counter()
        if clock is not None:
            self._due.discard(clock)
            clock.is_prompt = now_s - clock.left_s < LINGER_S
        try:
            if self._holder == threading.get_ident():
                return run_passes(passes)
            job = _Job(passes, clock, is_pinned, is_batch)
            self._run(job)
            result: T = job.taken()
            if clock is not None:
                clock.left_s = time.perf_counter()
                if clock.is_prompt:
                    self._due.add(clock)
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

    def _run(self, caller: _Job) -> None:
        """Returns when the step of this thread is over."""
        try:
            if not self._join(caller):
                self._wait(caller)
            while not caller.is_over:
                self._run_alone(caller)
                if not caller.is_over:
                    self._lead_on(caller)
            # What can go on now most often ends now, too: that costs no change of threads.
            while self._leader is caller and self._runnable and self._better_leader(caller) is None:
                self._run_next(caller)
        finally:
            self._resign(caller)

    def _join(self, caller: _Job) -> bool:
        """Adds a step to those that can go on; says whether this thread leads at once."""
        with self._mutex:
            has_lock = self._holder is None
            if has_lock:
                self._holder = caller.owner
            else:
                caller.turn = threading.Event()
                caller.wait()
            self._runnable.append(caller)
            if self._leader is None:
                self._leader = caller
                if not has_lock:
                    self._waiting.append((caller.owner, caller.turn))
            elif not self._due:
                self._has_come.set()
        return has_lock

    def _lead_on(self, caller: _Job) -> None:
        """Does what is next: a step, a pass, or leaving the lock to others."""
        if self._waiting:
            self._pass_on(caller, caller)
        elif (better := self._better_leader(caller)) is not None:
            self._pass_on(caller, better)
        elif self._runnable:
            self._run_next(caller)
        elif self._is_anybody_due():
            self._linger(caller)
        elif len(self._ready) == 1:
            only = self._ready.pop()
            only.compute()
            self._runnable.append(only)
            self._between()
        else:
            self._compute(caller)

    def _run_alone(self, caller: _Job) -> None:
        """Runs the step while nobody else wants to compute, or may be about to come back.

        That is little code, for each pass empties caches.
        """
        while not (len(self._runnable) > 1 or self._waiting or self._ready or self._due):
            self._runnable.popleft()
            pass_ = caller.go_on()
            if pass_ is None:
                return
            caller.outcome = attempt(pass_)
            self._runnable.append(caller)  # behind whoever came meanwhile
            self._between()
        if not caller.waits_since_s:
            caller.wait()

    def _run_next(self, caller: _Job) -> None:
        """Runs the step whose turn it is up to its next pass, or its end."""
        job = self._runnable.popleft()
        job.go_on()
        job.wait()
        if not job.is_over:
            self._ready.append(job)
        elif job is not caller:
            job.turn.set()

    def _better_leader(self, caller: _Job) -> _Job | None:
        """Returns who has to lead in place of this thread, which does now."""
        first = self._runnable[0] if self._runnable else None
        if first is not None and first.is_pinned:
            return None if first is caller else first
        if caller.is_of_main:
            return next((job for job in (*self._runnable, *self._ready) if job is not caller), None)
        return None

    def _pass_on(self, caller: _Job, leader: _Job) -> None:
        """Lets in who waits for the lock, then ``leader``; returns when this thread leads again.

        Or when its step is over.
        """
        with self._mutex:
            caller.turn = threading.Event()
            self._leader = leader
            self._waiting.append((leader.owner, leader.turn))
            self._give()
        self._wait(caller)

    def _resign(self, caller: _Job) -> None:
        """Forgets a step, and lets another thread lead if this one does."""
        with self._mutex:
            if not caller.is_over:  # an interrupt came between its passes
                self._ready = [job for job in self._ready if job is not caller]
                self._runnable = deque(job for job in self._runnable if job is not caller)
            if self._holder != caller.owner:
                return
            if self._leader is caller:
                self._leader = None
                if others := (*self._runnable, *self._ready):
                    self._leader = min(others, key=lambda job: job.is_of_main)
                    self._waiting.append((self._leader.owner, self._leader.turn))
            self._give()

    def _wait(self, caller: _Job) -> None:
        """Waits until the step is over or this thread leads. An interrupt is for the step."""
        while True:
            try:
                caller.turn.wait()
                return
            except BaseException as error:
                self._interrupt(caller, error)

    def _interrupt(self, caller: _Job, error: BaseException) -> None:
        """Has the step go on with an error in its own thread, in place of the pass it wants."""
        with self._mutex:
            caller.interrupt, caller.is_pinned = error, True
            if caller in self._ready:
                self._ready.remove(caller)
                self._runnable.appendleft(caller)
            self._has_come.set()

    def _is_anybody_due(self) -> bool:
        """Says whether a request was given something so lately that it may come back at once."""
        if self._due:
            latest_s = time.perf_counter() - LINGER_S
            self._due -= {clock for clock in list(self._due) if clock.left_s < latest_s}
        pass_ = self._ready[0].pass_
        return bool(self._due) and pass_ is not None and can_share(pass_)

    def _linger(self, caller: _Job) -> None:
        """Waits a moment for requests that may come back, or for whoever wants the lock."""
        self._has_come.clear()
        try:
            if self._due and not (self._runnable or self._waiting):
                self._has_come.wait(LINGER_S)
        except BaseException as error:
            self._interrupt(caller, error)

    def _compute(self, caller: _Job) -> None:
        """Computes what the policy chooses among the passes that are wanted."""
        with self._mutex:
            jobs = self._ready
            ready = [
                Waiting(job.pass_, job.is_batch, job.n_passed_over)
                for job in jobs
                if job.pass_ is not None
            ]
            sizes = [waiting.pass_.n_rows for waiting in ready]
            most_rows = ready[0].pass_.sequence.times.most_rows(sizes, MAX_ROWS)
            chosen = [jobs[i] for i in choose(ready, most_rows)]
            self._ready = [job for job in jobs if job not in chosen]
            for job in self._ready:
                job.n_passed_over += 1
        try:
            outcomes = attempt_all([job.pass_ for job in chosen if job.pass_ is not None])
        except BaseException as error:  # an interrupt is for this thread alone
            with self._mutex:
                self._ready = [*chosen, *self._ready]
            self._interrupt(caller, error)
            return
        for job, outcome in zip(chosen, outcomes, strict=True):
            job.take(outcome)
            self._runnable.append(job)
        self._between()

    def _take(self, clock: BusyClock | None = None) -> None:
        thread = threading.get_ident()
        if self._holder == thread:
            self._depth += 1
            return
        with self._mutex:
            if self._holder is None:
                self._holder = thread
                return
        with nullcontext() if clock is None else clock.stopped():
            self._wait_for_lock(thread)

    def _wait_for_lock(self, thread: int) -> None:
        waiter = thread, threading.Event()
        try:
            with self._mutex:
                self._waiting.append(waiter)
                self._has_come.set()
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
