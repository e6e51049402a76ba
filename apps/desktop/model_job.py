"""A program of its own that makes a model ready for use, so that it can be ended at any moment.

python -m edgedec.apps.desktop.model_job NAME

It prints a JSON object a line: {"phase", "done", "total"}, and at the end {"made"} or {"error"}.
Bars of the hub's client go to standard error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from edgedec.models.errors import EdgedecError

DOWNLOAD = "download"
"""The phase before those of an export."""


def report(phase: str, done: int, total: int) -> None:
    """Tells how much of a phase is done, of how much (0: unknown)."""
    _tell({"phase": phase, "done": done, "total": total})


def get(name: str) -> str:
    """Downloads the model ``name``, unless it is here or a file; returns its bundle, made now."""
    from contextlib import nullcontext

    from edgedec.apps.model_names import open_library

    library = open_library()
    from edgedec.export.checkpoints.catalogue import CATALOGUE, find_installed, model_file
    from edgedec.export.named_models import bundle_of

    pulled = library.find(name)
    if name.lower() in CATALOGUE:
        if find_installed(name) is None and not library.bundle(name).is_dir():
            report(DOWNLOAD, 0, 0)
            model_file(name, shows_bars=True)
    elif not Path(name).exists() and (pulled is None or not Path(pulled.source).exists()):
        report(DOWNLOAD, 0, 0)
        library.pull(name, shows_bars=True)
    return str(bundle_of(name, lambda text, bundle: nullcontext(report)))


def main(arguments: list[str]) -> int:
    """Does the job; returns the exit code."""
    (name,) = arguments
    try:
        _tell({"made": get(name)})
    except EdgedecError as error:
        _tell({"error": str(error)})
        return 1
    return 0


def _tell(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
