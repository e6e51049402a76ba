"""A program of its own that pulls or exports a model, so that it can be ended at any moment.

python -m edgedec.apps.desktop.model_job pull|export NAME

It prints a JSON object a line: {"phase", "done", "total"}, and at the end {"made"} or {"error"}.
"""

from __future__ import annotations

import json
import sys

from edgedec.models.errors import EdgedecError


def report(phase: str, done: int, total: int) -> None:
    """Tells how much of a phase is done, of how much (0: unknown)."""
    _tell({"phase": phase, "done": done, "total": total})


def pull(name: str) -> str:
    """Fetches a model from the hub; its bars go to standard error. Returns its name."""
    from edgedec.apps.model_names import open_library

    report("fetch", 0, 0)
    return open_library().pull(name, shows_bars=True).name


def export(name: str) -> str:
    """Exports a model that has a name; returns its bundle."""
    from contextlib import nullcontext

    from edgedec.export.named_models import bundle_of

    return str(bundle_of(name, lambda text, bundle: nullcontext(report)))


def main(arguments: list[str]) -> int:
    """Does the job; returns the exit code."""
    verb, name = arguments
    try:
        _tell({"made": {"pull": pull, "export": export}[verb](name)})
    except EdgedecError as error:
        _tell({"error": str(error)})
        return 1
    return 0


def _tell(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
