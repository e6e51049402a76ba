"""Who waits takes no CPU time: two models of two threads each, and a conversation."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgedec.runtime.cores.machine import allowed_processors

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(len(allowed_processors()) < 2, reason="one processor alone"),
]

MOST_MS = 20.0
"""CPU time that is nearly none, in a second. It does not depend on what else the machine does."""

ENGINE = """
import sys, time, edgedec

def rest(when):
    used_s = time.process_time()
    time.sleep(1)
    print(when, 1000 * (time.process_time() - used_s))

bundle = sys.argv[1]
with edgedec.load(bundle, edgedec.EngineOptions(threads=2, context=128, draft=bundle)) as engine:
    time.sleep(0.5)  # ONNX Runtime's new threads look for work at full speed for a while, once
    rest("loaded")
    for method in ("plain", "draft", "auto"):
        request = edgedec.GenerationConfig(max_new_tokens=16, ignore_eos=True, method=method)
        assert engine.generate("Once upon a time", request).n_new_tokens == 16
        rest(method)
"""

CHAT = "from edgedec.apps.cli import main; main()"


def test_an_idle_engine(smollm2_bundle: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENGINE, smollm2_bundle], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    used_ms = {when: float(ms) for when, ms in map(str.split, done.stdout.splitlines())}
    assert list(used_ms) == ["loaded", "plain", "draft", "auto"]
    assert max(used_ms.values()) < MOST_MS, used_ms


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
    assert chat.stdin is not None
    assert chat.stdout is not None
    for line in (b"Name a fruit.\n", b"Another one.\n"):
        chat.stdin.write(line)
        chat.stdin.flush()
        assert chat.stdout.readline().strip()
        time.sleep(0.2)  # the program may still say what the answer took
        used_ms = cpu_ms(chat.pid)
        time.sleep(1)
        assert cpu_ms(chat.pid) - used_ms <= MOST_MS


def cpu_ms(pid: int) -> float:
    """Returns the CPU time of a process and all of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
