"""Imports of the exporter, which an installation without its dependencies lacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgedec.models.errors import ConfigError


@contextmanager
def needs_exporter() -> Iterator[None]:
    """Says what is missing if an import inside fails, in an installation without dependencies.

    Raises:
        ConfigError: A package that exports need is missing.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("edgedec"):
            raise
        raise ConfigError(
            f"export needs {error.name}, which this installation lacks: install edgedec with its "
            "dependencies"
        ) from error
