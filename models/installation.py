"""The distribution that brought this package: what package indexes call edgedec, and its extras.

Package indexes know another project as `edgedec`. So no message writes a distribution's name: they
ask here, and this asks the installed metadata.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib import metadata

_COMMAND = "edgedec.apps.cli:main"  # no other distribution has an entry point there


@functools.cache
def installed_distribution() -> metadata.Distribution | None:
    """Returns the installed distribution, or None if edgedec runs without its metadata."""
    from importlib import metadata  # delays a short run, which asks for nothing

    for distribution in metadata.distributions():
        if _COMMAND in (distribution.read_text("entry_points.txt") or ""):
            return distribution
    return None


def distribution_version() -> str:
    """Returns the version of the installed distribution; "unknown" without its metadata."""
    distribution = installed_distribution()
    return "unknown" if distribution is None else distribution.version


def package_version(package: str) -> str | None:
    """Returns the installed version of ``package``, or None."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def install_command(extra: str) -> str:
    """Returns the command that installs what ``extra`` needs, for messages."""
    distribution = installed_distribution()
    if distribution is None:
        return f"install edgedec again with its extra {extra!r}"
    return f"pip install '{distribution.metadata['Name']}[{extra}]'"
