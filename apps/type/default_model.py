"""The model that suggests if nobody names one."""

from __future__ import annotations

from edgedec.apps.exporter import needs_exporter

BEST_FIRST = ("qwen2.5-coder-0.5b-instruct", "smollm2-135m-instruct")
"""By keys saved in English prose, as docs/type.md has it."""


def default_model() -> str:
    """Returns the name of the best model whose bundle or file is on this machine.

    The last of `BEST_FIRST`, which a package has, if there is none.
    """
    with needs_exporter():
        from edgedec.export.checkpoints.catalogue import find_installed
        from edgedec.export.library import user_library

    library = user_library()
    here = (name for name in BEST_FIRST if library.bundle(name).is_dir() or find_installed(name))
    return next(here, BEST_FIRST[-1])
