"""Signals end passes that do not end by themselves; others are left to end in peace."""

from __future__ import annotations

import signal
import sys
import threading
import time

from edgedec.system.signals import hear_at_once

_LONGEST_PASS_S = 10.0
"""Longer than any pass takes; one that goes on when Ctrl-C is so old is taken for endless."""


def end_endless_passes() -> None:
    """Has a second Ctrl-C end any pass; other signals do so at once."""
    last_s = -_LONGEST_PASS_S

    def hear(number: int) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if number != signal.SIGINT or now_s - last_s < _LONGEST_PASS_S:
            _end_passes()
        else:
            timer = threading.Timer(_LONGEST_PASS_S, _end_passes, [_LONGEST_PASS_S])
            timer.daemon = True
            timer.start()
        last_s = now_s

    hear_at_once(hear)


def _end_passes(least_s: float = 0.0) -> None:
    # Not imported: whoever did not import it before, or is about to, has no passes.
    running_passes = sys.modules.get("edgedec.runtime.backends.running_passes")
    if end_passes := vars(running_passes).get("end_passes") if running_passes else None:
        end_passes(least_s)
