"""What this process has used so far. Workers of `bench` load this file under other Pythons.

So it imports the standard library alone, and runs from Python 3.10 on.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def peak_rss_mb() -> float:
    """Returns the most memory this process has had resident. Units: 10**6 bytes.

    Linux's ``VmHWM`` is preferred: ``ru_maxrss`` starts at the parent's size after a fork.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6


def involuntary_switches() -> int:
    """Returns how often the system took a processor from a thread of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
