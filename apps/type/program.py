"""From a model and settings to suggestions in every window, until a signal comes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from dbus_fast.aio import MessageBus

from edgedec.apps.console.terminal import note
from edgedec.apps.type.ibus.auxiliary_text import AuxiliaryText
from edgedec.apps.type.ibus.engine import Engine
from edgedec.apps.type.ibus.service import Service
from edgedec.apps.type.menu import Menu
from edgedec.apps.type.model_process import ModelProcess
from edgedec.apps.type.settings import SettingsFile, TypeSettings
from edgedec.apps.type.suggestions import Suggestions
from edgedec.apps.type.text_place import Application, GhostView
from edgedec.apps.typing.typing_memory import TypingMemory
from edgedec.models.errors import ConfigError

_AGAIN_S = 2.0
"""After IBus' daemon ended, how often it is looked for."""

N_CONTEXT = 1024
"""Tokens that the model has memory for."""

MAX_NEW_TOKENS = 8


async def suggest_everywhere(
    bundle: str,
    threads: int | None,
    memory: TypingMemory,
    kept_in: SettingsFile,
    is_in_panel: bool,
    version: str,
) -> None:
    """Registers with IBus and suggests until it is cancelled.

    Raises:
        ConfigError: IBus does not run, or there is no place for the suggestion.
    """
    view, find_application, follow_clicks = _view(is_in_panel)

    def source() -> dict[str, object]:
        return {
            "bundle": str(menu.bundle), "threads": threads, "context": N_CONTEXT,
            "memory": asdict(memory),
        }  # fmt: skip

    def offered(text: str, is_complete: bool) -> None:
        suggestions.offered(text, is_complete)

    def changed() -> None:
        suggestions.hide()
        model.follow(source(), typing_settings(menu.settings))

    menu = Menu(kept_in, Path(bundle), changed, note)
    model = ModelProcess(
        source(),
        typing_settings(menu.settings),
        offered,
        lambda texts: suggestions.offered_others(texts),
        note,
    )
    suggestions = Suggestions(model, view, lambda: menu.settings)

    def make_engine(bus: MessageBus, path: str) -> Engine:
        return Engine(bus, path, suggestions, menu, find_application)

    service = Service(make_engine)
    await service.connect(version)
    running = asyncio.create_task(model.run())
    follow_clicks(lambda: service.clicked())
    try:
        while True:
            await service.wait()
            note("IBus ended; waiting for it to start again")
            suggestions.hide()
            service = await _connected_again(make_engine, version)
    finally:
        running.cancel()
        with suppress(ConfigError, OSError, EOFError):
            await service.close()


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


async def _connected_again(
    make_engine: Callable[[MessageBus, str], Engine], version: str
) -> Service:
    while True:
        await asyncio.sleep(_AGAIN_S)
        service = Service(make_engine)
        with suppress(ConfigError):
            await service.connect(version)
            return service
