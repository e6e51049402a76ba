"""When a host is tried again, and when it is given up: by a clock of the test's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("asyncssh")

from edgedec.apps.fleet import keeper
from edgedec.apps.fleet.config import Host
from edgedec.apps.fleet.connection import HostError
from edgedec.apps.fleet.keeper import CrewOptions, Keeper


class AwayHost(Keeper):
    """A host that never works. starts: whether its worker starts each time, and then ends."""

    starts = False
    is_final = False

    async def _serve(self) -> None:
        self._n_starts += self.starts
        if self.starts:
            self._seen_s = keeper.time.monotonic()
        raise HostError("it is away", is_final=self.is_final)


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was waited for, in seconds; the clock goes on by that and by nothing else."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(keeper.asyncio, "sleep", sleep)
    monkeypatch.setattr(keeper.time, "monotonic", lambda: 1000.0 + sum(waits))
    return waits


def given_up(host: type[AwayHost], patience_s: float) -> list[tuple[str, str]]:
    lost: list[tuple[str, str]] = []
    start: Any = None
    kept = host(Host("board", "board"), start, lambda _: {}, CrewOptions(patience_s=patience_s))
    asyncio.run(kept.keep(lambda *reason: lost.append(reason)))
    return lost


def test_waits_grow_until_patience_ends(sleeps: list[float]) -> None:
    assert given_up(AwayHost, 60.0) == [("board", "it is away")]
    assert sleeps == [2.0, 5.0, 10.0, 20.0, 20.0, 20.0]
    assert sum(sleeps[:-1]) <= 60.0 < sum(sleeps)


def test_without_patience_there_is_one_more_try(sleeps: list[float]) -> None:
    assert given_up(AwayHost, 0.0) == [("board", "it is away")]
    assert sleeps == [2.0]


def test_what_is_hopeless_is_not_tried_again(sleeps: list[float]) -> None:
    class Hopeless(AwayHost):
        is_final = True

    assert given_up(Hopeless, 60.0) == [("board", "it is away")]
    assert sleeps == []


def test_workers_that_end_by_themselves_are_given_up(sleeps: list[float]) -> None:
    class Ending(AwayHost):
        starts = True

    assert given_up(Ending, 1e9) == [("board", "it is away")]
    assert len(sleeps) == 5  # the sixth start is the last
