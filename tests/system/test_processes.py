"""What is known of other processes."""

from __future__ import annotations

import os
import subprocess
import sys

from edgedec.system.processes import environment


def test_environment_of_a_program() -> None:
    variables = {**os.environ, "EDGEDEC_SCALE": "a=2\n", "EDGEDEC_EMPTY": ""}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        began_with = environment(program.pid)
        program.communicate(b"\n")
    if sys.platform == "linux":
        assert began_with["EDGEDEC_SCALE"] == "a=2\n"
        assert began_with["EDGEDEC_EMPTY"] == ""
    else:
        assert began_with == {}
    assert environment(program.pid) == {}, "it has ended"
