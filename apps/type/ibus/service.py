"""Our side of IBus: makes an `Engine` for each of IBus' and calls it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from dbus_fast import Message

from edgedec.apps.type.ibus import messages
from edgedec.apps.type.ibus.connection import Connection
from edgedec.apps.type.ibus.engine import Engine
from edgedec.apps.type.ibus.handover import Guarded, is_state
from edgedec.models.errors import ConfigError

_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_EVENTS = {
    "ProcessKeyEvent", "SetSurroundingText", "SetCursorLocation", "FocusIn", "FocusInId",
    "FocusOut", "FocusOutId", "Reset", "Enable", "Disable", "PropertyActivate",
}  # fmt: skip
"""Of IBus' calls; those left out are about lists that we do not show."""

_PLAIN_ENGINE = "xkb:us::eng"
"""IBus' own, chosen in the end where none was before: without one, keys on their way are lost."""

_LOOK_S, _N_LOOKS = 1.0, 30
"""How often it is looked whether a desktop that starts has chosen its engine."""

_PAUSE_S = 0.5
"""Without a key, after which another engine is chosen in the end."""

_PATIENCE_S = 10.0
"""How long that pause is waited for."""

MakeEngine = Callable[[Connection, str], Engine]


class Service:
    """Answers IBus with our engines, until IBus or the guard ends.

    Args:
        make_engine: Makes an `Engine` of a connection and a path.
        guarded: Our end of what the guard gave us.
        pause_s: without a key, before another engine is chosen in the end.
    """

    def __init__(
        self, make_engine: MakeEngine, guarded: Guarded, pause_s: float = _PAUSE_S
    ) -> None:
        self._make_engine, self._guarded, self._pause_s = make_engine, guarded, pause_s
        self._key_s = float("-inf")  # when the latest key came
        self._connection = guarded.connection
        self._engines: dict[str, Engine] = {}
        self._ended: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Takes the connection from the guard, goes on with its engines, and chooses ours.

        Raises:
            ConfigError: IBus refuses.
        """
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        for message in self._guarded.take():
            self._call(message)
        self._choose(messages.ENGINE_NAME)
        if not self._guarded.before:
            loop.call_later(_LOOK_S, self._look_for_a_choice, _N_LOOKS)
        loop.add_reader(self._connection.fileno(), self._on_arrival)
        loop.add_reader(self._guarded.fileno(), self._end)

    def clicked(self) -> None:
        """Somebody clicked anywhere."""
        for engine in self._engines.values():
            engine.clicked()

    async def wait(self) -> None:
        """Returns when IBus' daemon or the guard has ended; raises what an event led to."""
        assert self._ended is not None
        await self._ended

    async def close(self) -> None:
        """Chooses the engine that was chosen before, and answers what came until then.

        That waits for a pause: keys that IBus gives to the other engine may overtake ours.
        """
        end_s = time.monotonic() + _PATIENCE_S
        while self._connection.is_open and time.monotonic() < min(
            self._key_s + self._pause_s, end_s
        ):
            await asyncio.sleep(self._pause_s / 10)
        asyncio.get_running_loop().remove_reader(self._connection.fileno())
        with suppress(ConfigError):
            if self._connection.is_open:
                choose_again(self._connection, self._guarded.before, self._answer)

    def _on_arrival(self) -> None:
        assert self._ended is not None
        try:
            self._connection.handle(self._answer)
        except Exception as error:  # no reason to lose a key: the guard answers it
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            if not self._ended.done():
                self._ended.set_exception(error)
        if not self._connection.is_open:
            self._end()

    def _choose(self, name: str) -> None:
        self._connection.ask(messages.call("SetGlobalEngine", "s", name), self._answer)

    def _look_for_a_choice(self, n_left: int) -> None:
        """Chooses our engine once more if a desktop that starts has chosen its own after us."""
        assert self._ended is not None
        if self._ended.done():
            return
        try:
            if chosen(self._connection, self._answer) not in ("", messages.ENGINE_NAME):
                self._choose(messages.ENGINE_NAME)
            elif n_left:
                look = partial(self._look_for_a_choice, n_left - 1)
                asyncio.get_running_loop().call_later(_LOOK_S, look)
        except ConfigError as error:
            self._ended.set_exception(error)

    def _end(self) -> None:
        assert self._ended is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._guarded.fileno())
        if not self._connection.is_open:
            loop.remove_reader(self._connection.fileno())
        if not self._ended.done():
            self._ended.set_result(None)

    def _answer(self, message: Message) -> Message:
        if is_state(message):
            self._guarded.remember(message)
        if message.member == "ProcessKeyEvent":
            self._key_s = time.monotonic()
        return messages.answer(message, self._call(message))

    def _call(self, message: Message) -> bool:
        """Does what a call is about; returns whether a key was ours."""
        path, member = message.path or "", message.member or ""
        if not path.startswith(messages.ENGINES):
            return False
        if member == "Destroy":
            self._engines.pop(path, None)
            return False
        if path not in self._engines:
            self._engines[path] = self._make_engine(self._connection, path)
        engine = self._engines[path]
        if message.interface == messages.PROPERTIES:
            if member == "Set" and message.body[1] == "ContentType":
                engine.set_content_type(*message.body[2].value)
            return False
        if member not in _EVENTS:
            return False
        answer = getattr(engine, _CAPITAL.sub("_", member).lower())(*message.body)
        return answer is True


def choose_again(
    connection: Connection, before: str, answer: Callable[[Message], Message | None]
) -> None:
    """Chooses the engine ``before`` for all windows if ours is chosen; empty: IBus' plain one.

    Raises:
        ConfigError: IBus ended, or refuses.
    """
    if chosen(connection, answer) == messages.ENGINE_NAME:
        connection.ask(messages.call("SetGlobalEngine", "s", before or _PLAIN_ENGINE), answer)


def chosen(connection: Connection, answer: Callable[[Message], Message | None]) -> str:
    """Returns the name of the engine that all windows have; empty if there is none."""
    try:
        description = connection.ask(messages.call("GetGlobalEngine"), answer)
    except ConfigError:
        return ""
    name: str = description.body[0].value[2]
    return name
