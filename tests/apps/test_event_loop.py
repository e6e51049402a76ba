"""Signals end event loops, wherever in a loop they come."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, sys, time
from edgedec.apps.console.event_loop import run_until_signal
from edgedec.system.signals import SignalWatch

number = int(sys.argv[1])

def swallow():
    try:
        os.kill(os.getpid(), number)
        time.sleep(0)
    except BaseException:
        pass

async def main():
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.call_soon(swallow)
    try:
        await ended.wait()
    finally:
        await asyncio.sleep(0.01)
        print("cleaned up")

watch = SignalWatch()
watch.start()
watch.is_started = True
run_until_signal(main())
"""


@pytest.mark.robustness
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_a_callback_ends_the_loop(number: signal.Signals) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(int(number))],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout == "cleaned up\n"
    if number == signal.SIGINT:
        assert done.stderr.endswith("KeyboardInterrupt\n")
    else:
        assert (done.returncode, done.stderr) == (128 + number, "")


def test_what_a_loop_computes_is_returned() -> None:
    program = PROGRAM.replace("await ended.wait()", "return 7").replace(
        "run_until_signal(main())", "print(run_until_signal(main()))"
    ).replace("loop.call_soon(swallow)", "pass")  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", program, "0"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "cleaned up\n7\n"


def test_the_process_ends_even_if_cleaning_up_never_does() -> None:
    program = PROGRAM.replace("await asyncio.sleep(0.01)", "await asyncio.sleep(3600)").replace(
        "run_until_signal(main())", "run_until_signal(main(), within_s=0.2)"
    )
    number = signal.SIGTERM
    done = subprocess.run(
        [sys.executable, "-c", program, str(int(number))],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    said = "a task did not end within 0.2 s of the signal; exiting anyway\n"
    assert (done.returncode, done.stderr) == (128 + number, said)
