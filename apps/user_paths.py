"""Paths as people write them."""

from __future__ import annotations

from pathlib import Path

from edgedec.models.errors import ConfigError


def user_path(text: str) -> Path:
    """Returns the path ``text``, whose first part may be ~ or ~NAME, a user's own folder.

    Raises:
        ConfigError: Nobody has that name.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        name = Path(text).parts[0]
        raise ConfigError(f"{text} begins with {name}, which is no user of this machine") from None
