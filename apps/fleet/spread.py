"""Has a crew do tasks, keeps what comes of each, and loses none."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from distributed import Client, Future

from edgedec.apps.fleet.crew import Crew
from edgedec.apps.fleet.store import Task, TaskResult, TaskStore
from edgedec.apps.fleet.tasks import run_task

_MAX_TRIES = 10
"""Workers that a task may fail on; whatever ends so many is the task's own fault."""

OnAnswer = Callable[[Task, TaskResult], None]


async def spread(
    crew: Crew,
    tasks: Sequence[Task],
    store: TaskStore,
    on_answer: OnAnswer,
    run: Callable[[str], str] = run_task,
) -> list[Task]:
    """Has tasks done, keeps their results, and returns those that nobody could do.

    Tasks for any host go to whoever is free next, so that each host does as many as its speed
    allows. A task whose host fails goes to another one. ``on_answer`` is called for each result as
    it comes. run: what workers do with the text of a task.
    """
    work = _Work(crew, tasks, run)
    while work.waiting and not work.is_hopeless():
        for task, answer in await work.next_answers():
            store.write(task, answer)
            on_answer(task, answer)
    work.stop()
    return work.left


class _Work:
    """Tasks that a scheduler has, as long as nothing came of them."""

    def __init__(self, crew: Crew, tasks: Sequence[Task], run: Callable[[str], str]) -> None:
        self.waiting: dict[asyncio.Task[Any], tuple[Task, int]] = {}
        self._left = {task.key: task for task in tasks}
        self._finished: asyncio.Queue[Any] = asyncio.Queue()
        self._crew = crew
        self._run, self._name = run, "edgedec-" + secrets.token_hex(4)
        shared = [task for task in tasks if task.host is None]
        # Together, so that Dask sees that there are more than workers, and hands them out singly.
        futures = self._submit(shared, 0) if shared else []
        for task, future in zip(shared, futures, strict=True):
            self._wait_for(task, future, 0)
        for task in tasks:
            if task.host is not None:
                self._again(task, 0)

    def _submit(self, tasks: Sequence[Task], n_tries: int, **where: Any) -> list[Future]:
        client: Client = self._crew.client
        keys = [(self._name, task.key, n_tries) for task in tasks]
        futures: list[Future] = client.map(
            self._run, [task.text for task in tasks], key=keys, retries=0, **where
        )
        return futures

    def _again(self, task: Task, n_tries: int) -> None:
        """Submits a task that is not any worker's."""
        addresses = self._crew.addresses
        if n_tries >= _MAX_TRIES:
            return
        at = [at for label, at in addresses.items() if task.host in (None, label)]
        if at:
            self._wait_for(task, self._submit([task], n_tries, workers=at)[0], n_tries)

    def _wait_for(self, task: Task, future: Future, n_tries: int) -> None:
        waiter = asyncio.create_task(_answer_of(future))
        waiter.add_done_callback(self._finished.put_nowait)
        self.waiting[waiter] = task, n_tries

    def is_hopeless(self) -> bool:
        """Whether nobody is left who could do any of the tasks."""
        return not self._crew.addresses

    async def next_answers(self) -> list[tuple[Task, TaskResult]]:
        """Returns what came in, after waiting for something to happen."""
        news = {
            asyncio.create_task(self._finished.get()),
            asyncio.create_task(self._crew.changed.wait()),
        }
        done, waiting = await asyncio.wait(news, return_when="FIRST_COMPLETED")
        for future in waiting:
            future.cancel()
        if self._crew.changed.is_set():
            self._crew.changed.clear()
            self._drop_lost()
        answers = []
        for future in done:
            finished = future.result()
            if finished in self.waiting:
                task, n_tries = self.waiting.pop(finished)
                if (answer := self._judge(task, n_tries, finished.result())) is not None:
                    del self._left[task.key]
                    answers.append((task, answer))
        return answers

    @property
    def left(self) -> list[Task]:
        """Tasks without a result."""
        return list(self._left.values())

    def _judge(self, task: Task, n_tries: int, reply: dict[str, Any]) -> TaskResult | None:
        """Returns the answer that a worker gave; else has the task done again elsewhere."""
        if "result" in reply:
            label = self._crew.label(reply["host"])
            return TaskResult(label, reply["result"], reply["state"], reply["device"])
        if "host" in reply:
            self._crew.retire(self._crew.label(reply["host"]), reply["error"])
        self._again(task, n_tries + 1)
        return None

    def _drop_lost(self) -> None:
        """Waits no more for tasks of hosts that were given up."""
        for waiter, (task, _) in list(self.waiting.items()):
            if task.host is not None and task.host in self._crew.lost:
                waiter.cancel()
                del self.waiting[waiter]

    def stop(self) -> None:
        """Waits for nothing any more."""
        for waiter in self.waiting:
            waiter.cancel()


async def _answer_of(future: Future) -> dict[str, Any]:
    """Returns what a worker made of a task; ``error`` alone if workers were lost with it."""
    try:
        answer: dict[str, Any] = json.loads(await future)
    except Exception as error:
        return {"error": str(error)}
    return answer
