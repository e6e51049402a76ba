"""What this process has used so far. Workers of `bench` load this file under other Pythons.

So it imports the standard library alone at first, and runs from Python 3.10 on.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def peak_rss_mb() -> float:
    """Returns the most memory this process has had resident. Units: 10**6 bytes."""
    return _peak() / 1e6


def involuntary_switches() -> int:
    """Returns how often the system took a processor from a thread; 0 where it does not count."""
    return _switches()


if sys.platform == "win32":

    def _peak() -> int:
        # By its place: under another Python there is no package that it is part of.
        path = Path(__file__).with_name("_windows.py")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return int(module.peak_rss())

    def _switches() -> int:
        return 0

else:
    import resource

    def _peak() -> int:
        # `ru_maxrss` starts at the parent's size after a fork, Linux's VmHWM does not.
        try:
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        except OSError:
            pass
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak * (1 if sys.platform == "darwin" else 1024)

    def _switches() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
