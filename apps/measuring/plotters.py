"""Who draws a picture, found before anything is measured."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from edgedec.models.errors import ConfigError
from edgedec.models.installation import install_command


def find_plotter(module: str, path: Path | None) -> Any:
    """Returns the function of a module below `edgedec.apps` that draws; None for no ``path``.

    Raises:
        ConfigError: matplotlib is missing, or the picture cannot be, which had better be known
            before anything runs.
    """
    if path is None:
        return None
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"cannot draw {path}: there is no folder {path.parent}")
    try:
        from edgedec.apps.measuring.pictures import PICTURES

        draw = importlib.import_module(f"edgedec.apps.{module}").draw
    except ImportError as error:
        raise ConfigError(
            f"--plot needs matplotlib ({error}): {install_command('plots')}"
        ) from None
    if path.suffix[1:].lower() not in PICTURES:
        raise ConfigError(f"cannot draw {path}: expected one of .{', .'.join(PICTURES)}")
    return draw
