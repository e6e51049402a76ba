"""How verbs declare an option that takes a value."""

from __future__ import annotations

from functools import partial
from typing import Any

import typer


def option(metavar: str | None, help: str, *names: str, **more: Any) -> Any:
    """Returns an option's declaration: what stands for its value, its help, its own names if any.

    more: as `typer.Option` has them.
    """
    return typer.Option(*names, metavar=metavar, help=help, **more)


sampling = partial(option, rich_help_panel="Sampling")
speed = partial(option, rich_help_panel="Speculation")
device = partial(option, rich_help_panel="Devices")
masks = partial(option, rich_help_panel="Models that fill masks in")
structure = partial(option, rich_help_panel="Structured output")
switching = partial(option, rich_help_panel="Switching between two models")
"""Options below a heading of their own on help pages."""
