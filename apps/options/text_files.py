"""Texts of files that a command line names."""

from __future__ import annotations

from pathlib import Path

from edgedec.models.errors import ConfigError
from edgedec.system.files import how_to_convert, read_text


def stated_text(path: Path) -> str:
    """Returns the text of a file: its line ends as they are, no byte order mark.

    Raises:
        ConfigError: It cannot be read, or is not UTF-8 text.
    """
    try:
        return read_text(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {how_to_convert(error)}") from None
