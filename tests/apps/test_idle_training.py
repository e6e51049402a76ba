"""A head learns while nobody types: when a training begins, what ends it, what is said."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the extra train")

from edgedec.apps.typing.idle_training import IdleTraining
from edgedec.runtime.engine.replay_buffer import ReplayBuffer
from edgedec.system.power import PowerSource
from edgedec.training.heads.adapt_folder import N_NEW, AdaptFolder

pytestmark = pytest.mark.slow

WAIT_S = 60


@pytest.fixture
def replay(small_bundle: Path, tmp_path: Path) -> Path:
    path = tmp_path / "my.replay"
    buffer = ReplayBuffer.made(path, small_bundle)
    for _ in range(N_NEW):
        buffer.keep([1, 2, 3] * 20)
    return path


@pytest.fixture
def bundle(small_bundle: Path, tmp_path: Path) -> Path:
    """One beside which a folder may be made."""
    return Path(shutil.copytree(small_bundle, tmp_path / "own.edgedec", copy_function=os.link))


def until(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


@contextmanager
def training(
    bundle: Path, replay: Path, program: str, power: PowerSource | None = None
) -> Iterator[tuple[IdleTraining, list[str]]]:
    """program: what runs in place of edgedec, with the arguments of that."""
    said: list[str] = []
    idle = IdleTraining(
        bundle,
        replay,
        0.25,
        said.append,
        idle_s=0.2,
        command=(sys.executable, "-c", program),
        power=power,
    )
    try:
        yield idle, said
    finally:
        idle.close()


def test_it_asks_for_the_share_and_says_what_became_of_it(
    bundle: Path, replay: Path, tmp_path: Path
) -> None:
    asked = tmp_path / "asked.json"
    program = (
        f"import json, sys; open({str(asked)!r}, 'w').write(json.dumps(sys.argv[1:]));"
        "print('{\"is_swapped\": true}')"
    )
    with training(bundle, replay, program) as (_, said):
        until(lambda: said)
    options = ["--from", str(replay), "--threads", "1", "--max-cpu", "0.25"]
    assert json.loads(asked.read_text()) == ["train", "adapt", str(bundle), "--json", *options]
    assert said[0] == f"{bundle} has learned from your texts: its drafts are better now"


def test_a_key_ends_it_at_once(bundle: Path, replay: Path, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    program = (
        f"import os, time; open({str(sign)!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(600)"
    )
    with training(bundle, replay, program) as (idle, said):
        until(lambda: sign.exists() and sign.read_text())
        pid = int(sign.read_text().split()[0])
        idle.stir()
        until(lambda: not _is_running(pid))
        until(lambda: len(sign.read_text().split()) > 1)  # it goes on in the next pause
    assert not _is_running(int(sign.read_text().split()[-1]))
    assert said == []


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_nothing_is_learned_on_battery(bundle: Path, replay: Path, tmp_path: Path) -> None:
    supply, sign = tmp_path / "power" / "BAT0", tmp_path / "sign"
    supply.mkdir(parents=True)
    for name, text in (("type", "Battery"), ("status", "Discharging")):
        (supply / name).write_text(text)
    program = f"open({str(sign)!r}, 'w').close(); print('{{\"is_swapped\": false}}')"
    looked = threading.Event()

    class Watched(PowerSource):
        @property
        def is_battery(self) -> bool:
            self._looked_s = -1000.0  # each time anew
            is_battery = super().is_battery
            if is_battery:
                looked.set()
            return is_battery

    with training(bundle, replay, program, power=Watched(supply.parent)):
        assert looked.wait(WAIT_S)
        assert not sign.exists()
        (supply / "status").write_text("Charging")
        until(sign.exists)


def test_a_failure_is_said_once(bundle: Path, replay: Path) -> None:
    with training(bundle, replay, "import sys; sys.exit('error: no disk')") as (idle, said):
        until(lambda: said)
        idle.stir()
    assert said == ["nothing was learned from your texts: error: no disk"]


def test_nothing_begins_without_new_texts_or_where_another_process_trains(
    bundle: Path, replay: Path
) -> None:
    folder = AdaptFolder(bundle)
    idle = IdleTraining(bundle, replay, 0.25, print)
    try:
        assert idle.has_news
        with folder.alone():
            assert not idle.has_news
            folder.end(N_NEW)
        assert not idle.has_news
    finally:
        idle.close()
