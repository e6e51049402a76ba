"""Whether this machine can hold the programs that a model writes."""

from __future__ import annotations

from edgedec.models.errors import EdgedecError
from edgedec.system.sandbox.programs import Limits, run_program


def check_programs_run(limits: Limits) -> tuple[str, ...]:
    """Returns what holds programs on this machine.

    Raises:
        EdgedecError: Even a harmless one fails here, so that every verdict would be wrong.
    """
    verdict = run_program("import collections, hashlib, math, random, re, typing\n", limits)
    if verdict.reason is not None:
        raise EdgedecError(
            f"cannot run programs apart on this machine ({verdict.reason}), so there is no telling "
            "which ones pass"
        )
    return verdict.held_by
