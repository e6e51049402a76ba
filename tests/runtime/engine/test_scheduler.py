"""The scheduler: who comes first, what errors and interrupts leave, and what waiting costs."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from edgedec.models.errors import SessionError
from edgedec.models.graph import Capabilities
from edgedec.runtime.decoding.busy_clock import BusyClock
from edgedec.runtime.engine.pass_policy import PATIENCE, Waiting, choose
from edgedec.runtime.engine.scheduler import Scheduler
from edgedec.runtime.sequences.passes import Pass, Passes, run_passes
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.token_tree import TokenTree

from ..conftest import ToyModel, ToySession

VOCAB = 60
TIMEOUT_S = 60.0
Drive = Callable[[Passes[list[int]]], list[int]]


def wait_until(is_so: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def n_waiting(scheduler: Scheduler) -> int:
    """Threads that wait for a turn, or for the one that leads."""
    jobs = (*scheduler._runnable, *scheduler._ready)
    return len({thread for thread, _ in scheduler._waiting} | {job.owner for job in jobs})


def is_free(scheduler: Scheduler) -> bool:
    """Whether whoever asks has a turn at once."""

    def take() -> None:
        with scheduler.exclusive():
            pass

    thread = started(take)
    thread.join(TIMEOUT_S)
    return not thread.is_alive()


def started(run: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def joined(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def saying(session: ToySession, n_passes: int) -> Passes[list[int]]:
    """A step that commits a token in each of its passes; returns what may follow them."""
    found = []
    for token in range(n_passes):
        rows = yield Pass(session, TokenTree.chain([token]), (0,))
        session.commit((0,))
        found.append(int(rows.logits[0].argmax()))
    return found


def test_first_come_first_served() -> None:
    scheduler, order = Scheduler(), list[int]()

    def take(i: int) -> None:
        with scheduler.exclusive():
            order.append(i)

    with scheduler.exclusive():
        threads = []
        for i in range(6):
            threads.append(started(lambda i=i: take(i)))
            wait_until(lambda i=i: n_waiting(scheduler) == i + 1)
        assert order == []
    joined(*threads)
    assert order == list(range(6))


def test_steps_alternate_pass_by_pass() -> None:
    """Whoever has just had a turn is behind all who wait, though its thread is awake."""
    scheduler, order = Scheduler(), list[str]()
    done = {"a": False, "b": False}
    found: dict[str, list[int]] = {}

    def drive(name: str, other: str) -> None:
        session = ToySession(VOCAB)

        def before_pass() -> None:
            order.append(name)
            wait_until(lambda: n_waiting(scheduler) or done[other])

        session.before_pass = before_pass
        found[name] = scheduler.run(saying(session, 4))
        done[name] = True

    first = started(lambda: drive("a", "b"))
    wait_until(lambda: order)
    joined(first, started(lambda: drive("b", "a")))
    assert order == ["a", "b"] * 4
    assert found["a"] == found["b"] == run_passes(saying(ToySession(VOCAB), 4))


def test_one_turn_is_one_pass_at_a_time() -> None:
    scheduler, n_inside, most = Scheduler(), 0, 0
    lock = threading.Lock()

    def drive() -> None:
        session = ToySession(VOCAB)

        def before_pass() -> None:
            nonlocal n_inside, most
            with lock:
                n_inside += 1
                most = max(most, n_inside)
            time.sleep(0.001)
            with lock:
                n_inside -= 1

        session.before_pass = before_pass
        scheduler.run(saying(session, 10))

    joined(*(started(drive) for _ in range(4)))
    assert most == 1


def drives() -> list[Drive]:
    return [run_passes, lambda step: Scheduler().run(step)]


@pytest.mark.parametrize("drive", drives(), ids=["alone", "scheduled"])
@pytest.mark.parametrize("error", [SessionError("no"), ValueError("no"), KeyboardInterrupt()])
def test_an_error_is_raised_inside_the_step_which_may_go_on(
    drive: Drive, error: BaseException
) -> None:
    session, caught = ToySession(VOCAB), list[BaseException]()

    def fail() -> None:
        raise error

    def step() -> Passes[list[int]]:
        session.before_pass = fail
        try:
            yield Pass(session, TokenTree.chain([7]), (0,))
        except type(error) as raised:
            caught.append(raised)
        session.before_pass = lambda: None
        return (yield from saying(session, 2))

    assert drive(step()) == run_passes(saying(ToySession(VOCAB), 2))
    assert caught == [error]
    assert list(session.tokens) == [0, 1]


@pytest.mark.parametrize("error", [SessionError("no"), KeyboardInterrupt()])
def test_an_error_that_the_step_leaves_ends_it_and_the_turn(error: BaseException) -> None:
    scheduler, session, ended = Scheduler(), ToySession(VOCAB), list[str]()

    def step() -> Passes[list[int]]:
        try:
            return (yield from saying(session, 2))
        finally:
            ended.append("ended")

    def fail() -> None:
        raise error

    session.before_pass = fail
    with pytest.raises(type(error)) as caught:
        scheduler.run(step())
    assert caught.value is error
    assert ended == ["ended"]
    assert is_free(scheduler)


def test_an_error_in_a_turn_ends_it() -> None:
    scheduler = Scheduler()
    with pytest.raises(ValueError, match="mine"), scheduler.exclusive():
        raise ValueError("mine")
    assert is_free(scheduler)


@pytest.mark.parametrize("way", ["taken", "drive"])
def test_the_clock_stands_still_while_waiting(way: str) -> None:
    scheduler, clock = Scheduler(), BusyClock()
    session, lost_s = ToySession(VOCAB), list[float]()

    def wait() -> None:
        started_s, busy_s = time.perf_counter(), clock.now_s()
        if way == "taken":
            with scheduler.exclusive(clock):
                pass
        else:
            scheduler.run(saying(session, 3), clock)
        busy_s, wall_s = clock.now_s() - busy_s, time.perf_counter() - started_s
        assert busy_s >= 0
        lost_s.append(wall_s - busy_s)

    with scheduler.exclusive():
        thread = started(wait)
        wait_until(lambda: n_waiting(scheduler) == 1)
        time.sleep(0.2)
    joined(thread)
    assert lost_s[0] >= 0.2


def test_the_clock_goes_on_inside_a_turn() -> None:
    scheduler, clock = Scheduler(), BusyClock()
    with scheduler.exclusive(clock):
        before_s = clock.now_s()
        time.sleep(0.05)
        assert clock.now_s() - before_s >= 0.05


def test_an_interrupt_while_waiting_leaves_the_queue() -> None:
    scheduler, order, is_over = Scheduler(), list[str](), threading.Event()
    main = threading.main_thread().ident
    assert main is not None
    assert threading.get_ident() == main

    def hold() -> None:
        with scheduler.exclusive():
            is_over.wait(TIMEOUT_S)

    def second() -> None:
        with scheduler.exclusive():
            order.append("second")

    def interrupt() -> None:
        wait_until(lambda: n_waiting(scheduler) == 1)
        behind = started(second)
        wait_until(lambda: n_waiting(scheduler) == 2)
        signal.pthread_kill(main, signal.SIGINT)
        wait_until(lambda: n_waiting(scheduler) == 1)
        is_over.set()
        joined(behind)

    holder = started(hold)
    wait_until(lambda: scheduler._holder)
    interrupter = started(interrupt)
    with pytest.raises(KeyboardInterrupt), scheduler.exclusive():
        order.append("interrupted")
    joined(interrupter, holder)
    assert order == ["second"]
    assert is_free(scheduler)


class _TooLate(threading.Event):
    """The interrupt comes when the turn has come already."""

    def wait(self, timeout: float | None = None) -> bool:
        super().wait(timeout)
        raise KeyboardInterrupt


def test_an_interrupt_as_the_turn_comes_passes_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, order = Scheduler(), list[str]()

    def first() -> None:
        with pytest.raises(KeyboardInterrupt), scheduler.exclusive():
            order.append("interrupted")

    def second() -> None:
        with scheduler.exclusive():
            order.append("second")

    late = SimpleNamespace(Event=_TooLate, get_ident=threading.get_ident)
    with scheduler.exclusive():
        with monkeypatch.context() as patched:
            patched.setattr("edgedec.runtime.engine.scheduler.threading", late)
            threads = [started(first)]
            wait_until(lambda: n_waiting(scheduler) == 1)
        threads.append(started(second))
        wait_until(lambda: n_waiting(scheduler) == 2)
    joined(*threads)
    assert order == ["second"]
    assert is_free(scheduler)


def test_who_has_the_turn_may_take_it_again() -> None:
    scheduler, session = Scheduler(), ToySession(9)
    with scheduler.exclusive(), scheduler.exclusive():
        assert scheduler.run(saying(session, 2)) == run_passes(saying(ToySession(9), 2))
        other = started(lambda: scheduler.run(saying(ToySession(9), 2)))
        wait_until(lambda: n_waiting(scheduler) == 1)
    joined(other)
    assert is_free(scheduler)


class SharingModel(ToyModel):
    """A toy whose passes several sequences may share; it notes how many did."""

    def __init__(self) -> None:
        super().__init__(VOCAB)
        self.capabilities = Capabilities(trees=True, gates=True, n_sequences=8)
        self.shared: list[int] = []

    def compute(self, passes: Sequence[Pass]) -> list[Rows]:
        self.shared.append(len(passes))
        return super().compute(passes)


def sharing(model: SharingModel, n_texts: int, n_passes: int = 6) -> list[list[int]]:
    """Returns what texts in threads of their own find, the first pass of all being one."""
    scheduler, found = Scheduler(), dict[int, list[int]]()

    def drive(i: int) -> None:
        session = ToySession(VOCAB, model=model)
        found[i] = scheduler.run(saying(session, n_passes), BusyClock())

    with scheduler.exclusive():
        threads = [started(lambda i=i: drive(i)) for i in range(n_texts)]
        wait_until(lambda: n_waiting(scheduler) == n_texts)
    joined(*threads)
    assert is_free(scheduler)
    assert not scheduler._ready
    return [found[i] for i in range(n_texts)]


@pytest.mark.parametrize("n_texts", [2, 5, 8, 11])
def test_passes_of_several_texts_are_one(n_texts: int) -> None:
    model = SharingModel()
    alone = run_passes(saying(ToySession(VOCAB), 6))
    assert sharing(model, n_texts) == [alone] * n_texts
    assert sum(model.shared) == 6 * n_texts
    assert max(model.shared) == min(n_texts, 8)


def noting(steps: Passes[list[int]], threads: list[int]) -> Passes[list[int]]:
    """The same step, which notes the thread that goes on with it each time."""
    threads.append(threading.get_ident())
    wanted = next(steps)
    try:
        while True:
            rows = yield wanted
            threads.append(threading.get_ident())
            wanted = steps.send(rows)
    except StopIteration as end:
        found: list[int] = end.value
        return found


@pytest.mark.parametrize("is_pinned", [False, True])
def test_one_thread_runs_the_steps_of_all_but_of_those_that_are_pinned(is_pinned: bool) -> None:
    model, scheduler = SharingModel(), Scheduler()
    own: dict[int, int] = {}
    ran: dict[int, list[int]] = {i: [] for i in range(4)}
    all_ran: list[int] = []

    def drive(i: int) -> None:
        own[i] = threading.get_ident()
        step = noting(noting(saying(ToySession(VOCAB, model=model), 6), ran[i]), all_ran)
        scheduler.run(step, is_pinned=is_pinned)

    with scheduler.exclusive():
        threads = [started(lambda i=i: drive(i)) for i in range(4)]
        wait_until(lambda: n_waiting(scheduler) == 4)
    joined(*threads)
    if is_pinned:
        assert all(set(ran[i]) == {own[i]} for i in range(4))
    else:
        assert len(set(all_ran)) == 1
    assert max(model.shared) == 4


def test_the_main_thread_runs_no_steps_of_others() -> None:
    """It begins alone, and leaves its own step to a thread that comes later."""
    model, scheduler, ran, ran_main = SharingModel(), Scheduler(), list[int](), list[int]()
    others: list[threading.Thread] = []

    def begin_others() -> None:
        model.before_pass = lambda: None
        for _ in range(3):
            step = noting(saying(ToySession(VOCAB, model=model), 40), ran)
            others.append(started(lambda step=step: scheduler.run(step)))
        wait_until(lambda: n_waiting(scheduler) == 3)

    model.before_pass = begin_others
    scheduler.run(noting(saying(ToySession(VOCAB, model=model), 20), ran_main))
    joined(*others)
    main = threading.main_thread().ident
    assert main not in ran
    assert len(ran) == 3 * 41
    assert main in ran_main
    assert set(ran_main) - {main}
    assert is_free(scheduler)


def test_an_interrupt_while_another_thread_leads_is_for_the_own_step() -> None:
    model, scheduler, caught = SharingModel(), Scheduler(), list[int]()
    may_end = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def long() -> Passes[list[int]]:
        found = []
        session = ToySession(VOCAB, model=model)
        while not may_end.is_set():
            found += yield from saying(session, 1)
            session.truncate(0)
        return found

    def interrupted() -> Passes[list[int]]:
        session = ToySession(VOCAB, model=model)
        try:
            while True:
                yield from saying(session, 1)
                session.truncate(0)
        except KeyboardInterrupt:
            caught.append(threading.get_ident())
            return (yield from saying(session, 2))

    def interrupt() -> None:
        wait_until(lambda: 2 in model.shared)
        signal.pthread_kill(main, signal.SIGINT)

    threads = [started(lambda: scheduler.run(long())), started(interrupt)]
    alone = run_passes(saying(ToySession(VOCAB), 2))
    assert scheduler.run(interrupted()) == alone
    assert caught == [main]
    may_end.set()
    joined(*threads)
    assert is_free(scheduler)


def test_what_goes_wrong_with_one_pass_is_no_matter_of_others() -> None:
    """The pass of one text is refused however it is computed; all others get their rows."""
    model, refused = SharingModel(), SessionError("not this one")
    compute, scheduler = model.compute, Scheduler()
    bad, outcomes = ToySession(VOCAB, model=model), dict[int, object]()

    def fail(passes: Sequence[Pass]) -> list[Rows]:
        if any(wanted.sequence is bad for wanted in passes):
            raise refused
        return compute(passes)

    model.compute = fail  # type: ignore[method-assign]

    def drive(i: int) -> None:
        session = ToySession(VOCAB, model=model) if i else bad
        try:
            outcomes[i] = scheduler.run(saying(session, 3))
        except SessionError as error:
            outcomes[i] = error

    with scheduler.exclusive():
        threads = [started(lambda i=i: drive(i)) for i in range(4)]
        wait_until(lambda: n_waiting(scheduler) == 4)
    joined(*threads)
    alone = run_passes(saying(ToySession(VOCAB), 3))
    assert [outcomes[i] for i in range(4)] == [refused, alone, alone, alone]


def test_an_interrupt_in_a_shared_pass_is_for_the_thread_that_computes() -> None:
    model, scheduler = SharingModel(), Scheduler()
    compute, is_first = model.compute, True
    outcomes = dict[int, object]()

    def interrupted(passes: Sequence[Pass]) -> list[Rows]:
        nonlocal is_first
        if is_first and len(passes) > 1:
            is_first = False
            raise KeyboardInterrupt
        return compute(passes)

    model.compute = interrupted  # type: ignore[method-assign]

    def drive(i: int) -> None:
        try:
            outcomes[i] = scheduler.run(saying(ToySession(VOCAB, model=model), 3))
        except KeyboardInterrupt:
            outcomes[i] = "interrupted"

    with scheduler.exclusive():
        threads = [started(lambda i=i: drive(i)) for i in range(4)]
        wait_until(lambda: n_waiting(scheduler) == 4)
    joined(*threads)
    alone = run_passes(saying(ToySession(VOCAB), 3))
    assert sorted(map(str, outcomes.values())) == sorted([str(alone)] * 3 + ["interrupted"])
    assert is_free(scheduler)


def test_the_policy_bounds_rows_and_lets_the_oldest_go_first() -> None:
    model, other = SharingModel(), SharingModel()

    def wanted(n_rows: int, of: ToyModel = model, **fields: Any) -> Waiting:
        chain = TokenTree.chain([1] * n_rows)
        return Waiting(Pass(ToySession(VOCAB, model=of), chain, (), **fields))

    assert choose([wanted(128), wanted(128), wanted(1), wanted(31), wanted(1)]) == [0, 2, 3]
    assert choose([wanted(1), wanted(1, other), wanted(1)]) == [0, 2]
    assert choose([wanted(200), wanted(1)]) == [0]
    assert choose([wanted(1), wanted(1, layer_gates=[True, True]), wanted(1)]) == [0, 2]
    assert choose([wanted(1, layers=range(1)), wanted(1)]) == [0]
    assert choose([wanted(1), wanted(1, is_alone=True), wanted(1)]) == [0, 2]
    assert choose([wanted(1, ToyModel(VOCAB)), wanted(1)]) == [0]
    assert len(choose([wanted(1) for _ in range(20)])) == 8


def batch(model: ToyModel, n_rows: int = 1, n_passed_over: int = 0) -> Waiting:
    chain = TokenTree.chain([1] * n_rows)
    return Waiting(Pass(ToySession(VOCAB, model=model), chain, ()), True, n_passed_over)


def test_what_somebody_waits_for_goes_before_batches() -> None:
    model = SharingModel()
    urgent = Waiting(batch(model).pass_)
    assert choose([batch(model), urgent, batch(model), urgent]) == [1, 3, 0, 2]
    # With the most sequences of a pass, batches are what is left out.
    assert choose([*[batch(model)] * 8, *[urgent] * 6]) == [8, 9, 10, 11, 12, 13, 0, 1]
    # Beside the others they have few rows in all, by themselves as many as there is room for.
    assert choose([batch(model, 6), urgent, batch(model, 6), batch(model, 2)]) == [1, 0, 3]
    assert choose([batch(model, 128), urgent]) == [1]
    assert choose([batch(model, 100), batch(model, 6), batch(model, 40)]) == [0, 1, 2]


def test_a_batch_that_waited_long_goes_first() -> None:
    model = SharingModel()
    urgent = Waiting(batch(model).pass_)
    late = batch(model, 128, PATIENCE)
    assert choose([late, urgent, batch(model)]) == [0, 1, 2]
    assert choose([batch(model, 128, PATIENCE - 1), urgent]) == [1]


@pytest.mark.parametrize("model", [SharingModel(), ToyModel(VOCAB)], ids=["shared", "one by one"])
@pytest.mark.parametrize("n_urgent", [1, 12])
def test_nobody_starves(model: ToyModel, n_urgent: int) -> None:
    """Requests that want another pass after each of theirs, as the scheduler asks the policy."""
    requests = [
        *(Waiting(batch(model).pass_) for _ in range(n_urgent)),
        *(batch(model, n_rows) for n_rows in (1, 3, 9, 128)),
    ]
    order, n_passed_over = list(range(len(requests))), [0] * len(requests)
    worst = [0] * len(requests)
    for _ in range(2000):
        ready = [Waiting(requests[i].pass_, requests[i].is_batch, n_passed_over[i]) for i in order]
        chosen = [order[place] for place in choose(ready)]
        order = [i for i in order if i not in chosen] + chosen
        for i in range(len(requests)):
            n_passed_over[i] = 0 if i in chosen else n_passed_over[i] + 1
            worst[i] = max(worst[i], n_passed_over[i])
    assert max(worst) <= PATIENCE + len(requests)
    if n_urgent == 1:
        assert worst[0] <= 4  # batches that waited long


def test_a_batch_and_what_somebody_waits_for_through_the_scheduler() -> None:
    """A model that computes one text at a time: most passes are of the one that is waited for."""
    scheduler, order = Scheduler(), list[str]()

    def drive(name: str, n_passes: int, is_batch: bool) -> None:
        session = ToySession(VOCAB)
        session.before_pass = lambda: order.append(name)
        scheduler.run(saying(session, n_passes), is_batch=is_batch)

    with scheduler.exclusive():
        slow = started(lambda: drive("batch", 5, True))
        wait_until(lambda: n_waiting(scheduler) == 1)
        quick = started(lambda: drive("urgent", 20, False))
        wait_until(lambda: n_waiting(scheduler) == 2)
    joined(slow, quick)
    assert order[:PATIENCE] == ["urgent"] * PATIENCE
    assert "batch" in order[: PATIENCE + 2]
    assert order.index("batch") == PATIENCE
    assert order[-1] == "batch"
