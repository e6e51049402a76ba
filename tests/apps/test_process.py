"""The program as a process: signals at any moment, standard streams that are closed or full."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from edgedec.system.signals import SignalWatch

pytestmark = pytest.mark.robustness

PROGRAM = [sys.executable, "-m", "edgedec"]
REPORT_START = """
from edgedec.system.signals import SignalWatch
start = SignalWatch.start
SignalWatch.start = lambda self: (start(self), print("up", flush=True))
from edgedec.apps.cli import main; main()
"""


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def hear_signals() -> None:
    """To be called in a child: jobs in the background ignore Ctrl-C, those of nohup hang-ups."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def shell(command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"{shlex.join(PROGRAM)} {command}"],
        capture_output=True, text=True, check=False, timeout=120, **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("number", "delay_ms"),
    list(zip(cycle(SIGNALS), [*range(0, 200, 20), 300, 500])),
)
def test_signals_at_the_start_are_silent(
    smollm2_bundle: Path, number: signal.Signals, delay_ms: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", REPORT_START, "run", str(smollm2_bundle), "hello", "-n", "400",
         "--ignore-eos"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=hear_signals,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(delay_ms / 1000)
    for _ in range(3):  # rapidly
        process.send_signal(number)
        time.sleep(0.005)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert b"Traceback" not in err
    assert b"rror" not in err


LOST = """
import os, signal, sys, time
from edgedec.system.signals import SignalWatch

class Closing:
    def __del__(self):
        os.kill(os.getpid(), {number})
        for _ in range(1000):
            pass  # the handler runs here

watch = SignalWatch()
watch.start()
watch.is_started = True
try:
    Closing()
    time.sleep(60)
except (KeyboardInterrupt, SystemExit):
    watch.end()
    sys.exit(watch.exit_code)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_destructor_is_silent_and_ends_the_program(number: signal.Signals) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOST.format(number=int(number))],
        capture_output=True, check=False, timeout=50, preexec_fn=hear_signals,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (128 + number, b"")


LATE = """
import signal
from edgedec.system.signals import SignalWatch
end = SignalWatch.end

def late(self):
    SignalWatch.end, self.is_started = end, True
    self._on_signal(signal.SIGINT, None)

SignalWatch.end = late
from edgedec.apps.cli import main; main()
"""


def test_a_signal_that_waited_until_the_end_is_silent() -> None:
    """One that came inside of an import, when a second one had ended the passes already."""
    done = subprocess.run(
        [sys.executable, "-c", LATE, "--version"], capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (130, b"")


def test_a_signal_inside_of_an_import_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised where Python keeps its import locks, it left one locked: the next import hung."""
    asked: list[float] = []
    monkeypatch.setattr(signal, "setitimer", lambda which, seconds: asked.append(seconds))
    watch = SignalWatch()
    watch.is_started = True
    found: dict[str, Any] = {"sys": sys}
    exec(compile("frame = sys._getframe()", "<frozen importlib._bootstrap>", "exec"), found)
    for _ in range(2):  # a second one, and one that looks again
        watch._on_signal(signal.SIGINT, found["frame"])
    watch._on_alarm(signal.SIGALRM, found["frame"])
    assert len(asked) == 3
    assert watch.exit_code is None
    with pytest.raises(KeyboardInterrupt):
        watch._on_alarm(signal.SIGALRM, sys._getframe())
    assert watch.exit_code == 130


def test_a_signal_waits_for_no_import_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "setitimer", lambda which, seconds: None)
    monkeypatch.setattr("edgedec.system.signals._LONGEST_IMPORT_S", 0.0)
    watch = SignalWatch()
    watch.is_started = True
    found: dict[str, Any] = {"sys": sys}
    exec(compile("frame = sys._getframe()", "<frozen importlib._bootstrap>", "exec"), found)
    watch._waiting = (signal.SIGTERM, 0.0)
    with pytest.raises(SystemExit):
        watch._on_signal(signal.SIGTERM, found["frame"])


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-", "2>/dev/full"])
def test_text_comes_while_standard_output_works(smollm2_bundle: Path, closed: str) -> None:
    ran = shell(f"run {smollm2_bundle} --raw 'Once upon a time' -n 4 {closed}")
    assert ran.returncode == 0
    assert ran.stdout.strip()
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("stream", "reason"), [(">/dev/full", "No space left on device"), (">&-", "Bad file")]
)
@pytest.mark.parametrize("verb", ["inspect BUNDLE", "doctor", "run BUNDLE hi -n 2", "--help"])
def test_a_standard_output_that_fails_is_named(
    smollm2_bundle: Path, verb: str, stream: str, reason: str
) -> None:
    ran = shell(f"{verb.replace('BUNDLE', str(smollm2_bundle))} {stream}")
    assert ran.returncode == 1
    errors = [line for line in ran.stderr.splitlines() if line.startswith("error: ")]
    assert errors == [f"error: cannot write to standard output: {errors[0].split(': ')[-1]}"]
    assert reason in errors[0]
    assert "Traceback" not in ran.stderr
    assert "Exception" not in ran.stderr


def test_everything_closed(smollm2_bundle: Path) -> None:
    assert shell(f"run {smollm2_bundle} hi -n 2 <&- >&- 2>&-").returncode == 1


@pytest.mark.parametrize("option", ["", "--json"])
def test_names_that_are_no_text_are_shown_as_json_has_them(tmp_path: Path, option: str) -> None:
    (tmp_path / "\udcff.edgedec").mkdir()
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict", "COLUMNS": "200"}
    ran = shell(f"models list {option}", cwd=tmp_path, env=strict)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert r"\udcff.edgedec" in ran.stdout
    if option:
        assert json.loads(ran.stdout)["bundles"][-1]["path"] == "\udcff.edgedec"
