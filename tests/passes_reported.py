"""The program in a process that tells when passes of a model begin."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import itertools, sys
from edgedec.runtime.backends import running_passes
begin, count = running_passes.begin, itertools.count(1)
def tell(run):
    begin(run)
    if (n := next(count)) <= 10:
        print("pass", n, file=sys.stderr, flush=True)
running_passes.begin = tell
from edgedec.apps.cli import main; main()
"""
TELLING_PASSES = [sys.executable, "-c", _PROGRAM]
"""To be followed by arguments; it tells of the first ten, by standard error."""


def wait_for_passes(process: subprocess.Popen[str], n: int) -> None:
    """Returns when the ``n``-th pass begins."""
    assert process.stderr is not None
    reported = []
    for line in process.stderr:
        reported.append(line)
        if line == f"pass {n}\n":
            return
    raise AssertionError("".join(reported))
