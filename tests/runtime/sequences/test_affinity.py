"""Where threads stay, and that they rest when there is nothing to do."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

import edgedec
from edgedec import ConfigError, GenerationConfig
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.system.processors import allowed_processors

PROCESSORS = allowed_processors()
needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system cannot tell threads where to stay"
)
needs_two = pytest.mark.skipif(len(PROCESSORS) < 2, reason="one processor alone")
SHORT = GenerationConfig(max_new_tokens=8, ignore_eos=True, method="plain")


def places_of_threads() -> list[set[int]]:
    """Returns the processors that each thread of this process may run on."""
    places = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # a thread that ended since
            places.append(os.sched_getaffinity(int(task.name)))
    return places


def test_nothing_asked_is_nothing_pinned() -> None:
    free = Affinity.of(None, 3)
    assert free == Affinity()
    assert free.of_pool == ""
    with free.held():
        assert allowed_processors() == PROCESSORS


def test_the_pool_gets_all_but_the_first() -> None:
    assert Affinity((4, 0, 7)).of_pool == "1;8"
    assert Affinity((4,)).of_pool == ""
    assert Affinity((4, 0, 7)).first(2) == Affinity((4, 0))
    assert Affinity().first(9) == Affinity()


@needs_affinity
def test_the_calling_thread_is_held_and_let_go() -> None:
    one = Affinity.of(PROCESSORS[-1:])
    with pytest.raises(KeyError), one.held():
        assert allowed_processors() == PROCESSORS[-1:]
        raise KeyError
    assert allowed_processors() == PROCESSORS


@pytest.mark.parametrize(
    ("processors", "threads", "message"),
    [
        ([], None, "at least one"),
        ([PROCESSORS[0], PROCESSORS[0]], None, "different processors"),
        ([10**6], None, "affinity names processor 1000000, expected some that this process may"),
        ([-1], None, "affinity names processor -1"),
        (["0"], None, "affinity names processor '0'"),
        ([True], None, "affinity names processor True"),
        (PROCESSORS[:1], 2, "names 1 processors for 2 threads"),
    ],
)
def test_bad_affinities(processors: list[int], threads: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Affinity.of(processors, threads)


def test_a_draft_model_has_no_more_threads_than_processors() -> None:
    with pytest.raises(ConfigError, match="the draft model has 3 threads"):
        Affinity((0, 1)).first(3)


@needs_affinity
@needs_two
@pytest.mark.e2e
def test_threads_of_a_model_stay_where_they_belong(smollm2_bundle: Path) -> None:
    before = places_of_threads()
    asked = PROCESSORS[:2]
    with edgedec.load(smollm2_bundle, edgedec.EngineOptions(affinity=asked[::-1])) as engine:
        pinned = places_of_threads()
        assert pinned.count({asked[0]}) == before.count({asked[0]}) + 1  # the pool's one
        pinned_text = engine.generate("Once upon", SHORT).text
    assert allowed_processors() == PROCESSORS
    with edgedec.load(smollm2_bundle, edgedec.EngineOptions(threads=2)) as engine:
        assert engine.generate("Once upon", SHORT).text == pinned_text


@needs_two
@pytest.mark.e2e
def test_threads_rest_after_a_text(smollm2_bundle: Path) -> None:
    """Threads that look for work do so after each text; what else takes time comes and goes."""
    with edgedec.load(smollm2_bundle, edgedec.EngineOptions(threads=2)) as engine:
        assert any(rests_after_a_text(engine) for _ in range(20))


def rests_after_a_text(engine: edgedec.Engine) -> bool:
    engine.generate("Once upon", SHORT)
    used_s = time.process_time()
    time.sleep(0.3)
    return time.process_time() - used_s < 0.03
