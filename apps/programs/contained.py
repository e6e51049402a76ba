"""Whether this machine can hold the programs that a model writes."""

from __future__ import annotations

from edgedec.models.errors import EdgedecError
from edgedec.system.machine import system_name
from edgedec.system.sandbox.programs import Limits, is_contained, run_program


def check_programs_run(limits: Limits, is_uncontained_allowed: bool = False) -> tuple[str, ...]:
    """Returns what holds programs on this machine.

    is_uncontained_allowed: they run although this system could not stop them from writing files or
        reaching a network.

    Raises:
        EdgedecError: They would run so, and may not. Or even a harmless one fails here, so that
            every verdict would be wrong.
    """
    if not (is_contained() or is_uncontained_allowed):
        raise EdgedecError(
            f"{system_name()} cannot contain the programs that a model writes: evaluate on Linux, "
            "or pass --uncontained-programs on a machine that you can afford to lose"
        )
    verdict = run_program("import collections, hashlib, math, random, re, typing\n", limits)
    if verdict.reason is not None:
        raise EdgedecError(
            f"cannot run programs apart on this machine ({verdict.reason}): evaluate on "
            "another machine"
        )
    return verdict.held_by
