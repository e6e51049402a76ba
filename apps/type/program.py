"""From a model and settings to suggestions in every window, until a signal comes.

python -m edgedec.apps.type.program ARGUMENTS CONNECTION GUARD

It is started by the guard: ARGUMENTS are JSON, the others open sockets.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from edgedec.apps.console.event_loop import run_until_signal
from edgedec.apps.console.terminal import note, print_error
from edgedec.apps.type.ibus.auxiliary_text import AuxiliaryText
from edgedec.apps.type.ibus.connection import Connection
from edgedec.apps.type.ibus.engine import Engine
from edgedec.apps.type.ibus.handover import Guarded
from edgedec.apps.type.ibus.service import Service
from edgedec.apps.type.menu import Menu
from edgedec.apps.type.model_process import ModelProcess
from edgedec.apps.type.settings import SettingsFile, TypeSettings
from edgedec.apps.type.suggestions import Suggestions
from edgedec.apps.type.text_place import Application, GhostView
from edgedec.apps.typing.typing_memory import TypingMemory
from edgedec.models.errors import EdgedecError

N_CONTEXT = 1024
"""Tokens that the model has memory for."""

MAX_NEW_TOKENS = 8


async def suggest_everywhere(
    guarded: Guarded, bundle: str, threads: int | None, learn: str, is_in_panel: bool
) -> None:
    """Suggests until it is cancelled, or IBus or the guard ends.

    learn: folder for what is learned; empty: none.

    Raises:
        ConfigError: IBus refuses, or there is no place for the suggestion.
    """
    view, find_application, follow_clicks = _view(is_in_panel)

    def source() -> dict[str, object]:
        return {
            "bundle": str(menu.bundle), "threads": threads, "context": N_CONTEXT,
            "memory": asdict(TypingMemory(learn)),
        }  # fmt: skip

    def offered(text: str, is_complete: bool) -> None:
        suggestions.offered(text, is_complete)

    def changed() -> None:
        suggestions.hide()
        model.follow(source(), typing_settings(menu.settings))

    menu = Menu(SettingsFile(), Path(bundle), changed, note)
    model = ModelProcess(
        source(),
        typing_settings(menu.settings),
        offered,
        lambda texts: suggestions.offered_others(texts),
        note,
    )
    suggestions = Suggestions(model, view, lambda: menu.settings)

    def make_engine(connection: Connection, path: str) -> Engine:
        return Engine(connection, path, suggestions, menu, find_application)

    service = Service(make_engine, guarded)
    service.start()
    running = asyncio.create_task(model.run())
    follow_clicks(service.clicked)
    try:
        await service.wait()
        await service.close()
    except asyncio.CancelledError:
        await service.close()
        raise
    finally:
        running.cancel()


def typing_settings(settings: TypeSettings) -> dict[str, object]:
    """Returns how suggestions are made, of `AutocompleteConfig`: short, and nothing ahead."""
    return {
        "n_before": 512,
        "n_after": 64,
        "n_others": 0,
        "max_new_tokens": MAX_NEW_TOKENS,
        "max_idle_cpu": 0.0,
        "min_probability": settings.min_probability,
    }


def _view(
    is_in_panel: bool,
) -> tuple[GhostView, Callable[[], Application], Callable[[Callable[[], None]], None]]:
    """Returns where suggestions are shown, what finds the program in front, what reports clicks."""
    if is_in_panel or os.environ.get("WAYLAND_DISPLAY") or not os.environ.get("DISPLAY"):
        return AuxiliaryText(), Application, lambda on_click: None
    from edgedec.apps.type.x11.clicks import Clicks
    from edgedec.apps.type.x11.front_window import FrontProgram
    from edgedec.apps.type.x11.ghost_window import GhostWindow

    def follow_clicks(on_click: Callable[[], None]) -> None:
        Clicks(on_click).follow(asyncio.get_running_loop())

    return GhostWindow(), FrontProgram().find, follow_clicks


def main() -> int:
    """Runs until it is done, or something fails; returns the exit code."""
    arguments = json.loads(sys.argv[1])
    held, guard = (socket.socket(fileno=int(number)) for number in sys.argv[2:])
    connection = Connection(held, arguments.pop("turn"))
    guarded = Guarded(connection, guard, arguments.pop("before"))
    try:
        run_until_signal(suggest_everywhere(guarded, **arguments))
    except EdgedecError as error:
        print_error(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
