"""Who waits takes no CPU time: two models of two threads each, and a conversation."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgedec.system.processors import allowed_processors

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(len(allowed_processors()) < 2, reason="one processor alone"),
]

MAX_MS = 20.0
"""CPU time that is nearly none, in a second."""

N_TRIES = 10
"""Threads that wait at full speed do so each time; new ones look for work once, and a machine that
stands still makes whatever goes on last into the second that is measured."""

ENGINE = """
import sys, time, edgedec

bundle, most_ms, n_tries = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])

def generate(method):
    request = edgedec.GenerationConfig(max_new_tokens=16, ignore_eos=True, method=method)
    assert engine.generate("Once upon a time", request).n_new_tokens == 16

def rest(when, do):
    for _ in range(n_tries):
        do()
        used_s = time.process_time()
        time.sleep(1)
        used_ms = 1000 * (time.process_time() - used_s)
        if used_ms < most_ms:
            break
    print(when, used_ms)

with edgedec.load(bundle, edgedec.EngineOptions(threads=2, context=128, draft=bundle)) as engine:
    rest("loaded", lambda: None)
    for method in ("plain", "draft", "auto"):
        rest(method, lambda: generate(method))
"""

CHAT = "from edgedec.apps.cli import main; main()"


def test_an_idle_engine(smollm2_bundle: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENGINE, smollm2_bundle, str(MAX_MS), str(N_TRIES)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    used_ms = {when: float(ms) for when, ms in map(str.split, done.stdout.splitlines())}
    assert list(used_ms) == ["loaded", "plain", "draft", "auto"]
    assert max(used_ms.values()) < MAX_MS, used_ms


@pytest.fixture
def chat(smollm2_bundle: Path) -> Iterator[subprocess.Popen[bytes]]:
    options = ["chat", smollm2_bundle, "--draft", smollm2_bundle, "--threads", "2", "-n", "8"]
    talk = subprocess.Popen(
        [sys.executable, "-c", CHAT, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with talk:
        yield talk
        assert talk.stdin is not None
        talk.stdin.close()
        assert talk.wait() == 0


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")
def test_an_idle_conversation(chat: subprocess.Popen[bytes]) -> None:
    for line in (b"Name a fruit.\n", b"Another one.\n"):
        assert any(rests_after(chat, line) for _ in range(N_TRIES))


def rests_after(chat: subprocess.Popen[bytes], line: bytes) -> bool:
    """Returns whether a conversation that has answered is at rest."""
    assert chat.stdin is not None
    assert chat.stdout is not None
    chat.stdin.write(line)
    chat.stdin.flush()
    assert chat.stdout.readline().strip()
    time.sleep(0.2)  # the program may still say what the answer took
    used_ms = cpu_ms(chat.pid)
    time.sleep(1)
    return cpu_ms(chat.pid) - used_ms <= MAX_MS


def cpu_ms(pid: int) -> float:
    """Returns the CPU time of a process and all of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
