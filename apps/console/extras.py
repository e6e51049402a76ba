"""Verbs that need an extra of edgedec, which has their name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edgedec.models.errors import ConfigError
from edgedec.models.installation import install_command


@contextmanager
def needs_extra(extra: str, missing: Callable[[ImportError], str] | None = None) -> Iterator[None]:
    """Raises a ConfigError where an import inside the block fails.

    missing: returns what is missing and what installs it; by default the package and the ``extra``.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("edgedec"):
            raise
        what = f"{error.name}: {install_command(extra)}" if missing is None else missing(error)
        raise ConfigError(f"{extra} needs {what}") from error
