"""Models by name: loaded when first asked for, unloaded when others need their memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from edgedec.apps.console.terminal import bytes_text
from edgedec.apps.serve.core import ServeError
from edgedec.apps.serve.waiting import finished
from edgedec.models.errors import EdgedecError
from edgedec.models.manifest import BundleManifest, fingerprint_of
from edgedec.runtime.engine.engine import Engine


@dataclass(frozen=True)
class Offer:
    """A model that requests may name.

    created: seconds since 1970. template: of conversations, if there is one. can_infill: it knows
    how to fill in between two texts.
    """

    name: str
    bundle: Path
    manifest: BundleManifest
    created: int
    template: str = ""
    can_infill: bool = False

    @property
    def has_template(self) -> bool:
        """Conversations can be written."""
        return bool(self.template)

    @property
    def digest(self) -> str:
        """Tells the model from others: of what its manifest states."""
        return fingerprint_of(self.manifest, self.manifest.target_name)

    @property
    def n_bytes(self) -> int:
        """Bytes of the bundle's files, about what the loaded model takes."""
        return sum(entry.n_bytes for entry in self.manifest.files.values())


@dataclass(eq=False)
class _Slot:
    """One model. waiters: requests that get the engine as soon as it is their model's turn.

    is_held: the model takes memory, or is about to. n_users: requests that use the engine.
    """

    offer: Offer
    engine: Engine | None = None
    is_held: bool = False
    n_users: int = 0
    used_s: float = 0.0
    waiters: list[asyncio.Future[Engine]] = field(default_factory=list)
    bringing: asyncio.Task[None] | None = None
    expires: asyncio.TimerHandle | None = None


class ModelRegistry:
    """The offered models. All of it happens in the server's event loop; loading in threads.

    A model that needs the memory of others waits until their answers are complete. Later requests
    for those models wait until it had its turn. Nobody waits for a model to load but its own
    requests.
    """

    def __init__(
        self,
        offers: Sequence[Offer],
        load: Callable[[Path], Engine],
        memory_bytes: int | None = None,
        keep_alive_s: float | None = None,
    ) -> None:
        """memory_bytes: most of all loaded bundles together. keep_alive_s: how long a model that
        nobody uses stays loaded; for ever when None.
        """
        self._slots = {offer.name: _Slot(offer) for offer in offers}
        self._load = load
        self._memory_bytes = memory_bytes
        self._keep_alive_s = keep_alive_s
        self._turns = asyncio.Lock()  # models make room one after another, in order of arrival
        self._leaving: Collection[_Slot] = ()  # they make room next: nobody may begin to use them
        self._changed = asyncio.Event()

    @property
    def offers(self) -> list[Offer]:
        """The models that may be asked for."""
        return [slot.offer for slot in self._slots.values()]

    @property
    def loaded(self) -> list[Offer]:
        """Those that are in memory."""
        return [slot.offer for slot in self._slots.values() if slot.engine is not None]

    def find(self, name: str) -> Offer:
        """Returns the offered model ``name``; the first one where it is empty.

        Raises:
            ServeError: There is none of that name.
        """
        known = name or next(iter(self._slots))
        slot = self._slots.get(known) or self._slots.get(known.removesuffix(":latest"))
        if slot is None:
            offered = ", ".join(self._slots)
            raise ServeError(
                404,
                "not_found_error",
                f"there is no model {name[:80]!r} here; there is: {offered}",
                param="model",
                code="model_not_found",
            )
        return slot.offer

    @asynccontextmanager
    async def lent(self, offer: Offer, keep_alive_s: float | None = None) -> AsyncIterator[Engine]:
        """Lends the engine of ``offer``, loaded if need be.

        keep_alive_s: how long the model stays loaded afterwards, in place of the usual time.

        Raises:
            ServeError: It cannot be loaded, or does not fit the memory.
        """
        slot = self._slots[offer.name]
        engine = await self._entered(slot)
        try:
            yield engine
        finally:
            self._leave(slot, self._keep_alive_s if keep_alive_s is None else keep_alive_s)

    async def close(self) -> None:
        """Unloads every model; their requests have ended."""
        for slot in self._slots.values():
            if slot.bringing is not None:
                await asyncio.wait((slot.bringing,))
            await self._unload(slot)

    async def _entered(self, slot: _Slot) -> Engine:
        """Returns the engine of ``slot``, which counts one user more."""
        if slot.engine is not None and slot not in self._leaving:
            slot.n_users += 1
            self._expire(slot, None)
            return slot.engine
        waiter: asyncio.Future[Engine] = asyncio.get_running_loop().create_future()
        slot.waiters.append(waiter)
        if slot.bringing is None:
            slot.bringing = asyncio.create_task(self._bring(slot))
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter in slot.waiters:
                slot.waiters.remove(waiter)
                self._report_change()
            elif (
                not waiter.cancelled() and waiter.exception() is None
            ):  # it got the engine in the same moment
                self._leave(slot, self._keep_alive_s)
            raise

    def _leave(self, slot: _Slot, keep_alive_s: float | None) -> None:
        slot.n_users -= 1
        slot.used_s = time.monotonic()
        self._expire(slot, keep_alive_s)
        self._report_change()

    async def _bring(self, slot: _Slot) -> None:
        """Loads ``slot`` when it is its turn, and gives the engine to all who wait for it."""
        try:
            async with self._turns:
                has_room = await self._make_room(slot)
                slot.is_held |= has_room
            if has_room and slot.engine is None:
                await self._load_into(slot)
        except Exception as error:
            for waiter in self._waiters_of(slot):
                waiter.set_exception(error)
        else:
            for waiter in self._waiters_of(slot):
                assert slot.engine is not None
                slot.n_users += 1
                waiter.set_result(slot.engine)
            self._expire(slot, self._keep_alive_s)  # everybody may have gone away
        finally:
            slot.bringing = None
            self._report_change()

    def _waiters_of(self, slot: _Slot) -> list[asyncio.Future[Engine]]:
        """Returns who waits for ``slot``, and need not wait any longer."""
        waiters, slot.waiters = slot.waiters, []
        return [waiter for waiter in waiters if not waiter.done()]

    async def _make_room(self, slot: _Slot) -> bool:
        """Unloads other models until ``slot`` fits; False if nobody wants it any more.

        Raises:
            ServeError: It never fits.
        """
        if self._memory_bytes is not None and slot.offer.n_bytes > self._memory_bytes:
            raise ServeError(
                503,
                "unavailable_error",
                f"{slot.offer.name} takes {bytes_text(slot.offer.n_bytes)}, --memory allows "
                f"{bytes_text(self._memory_bytes)}",
            )
        try:
            while slot.waiters:
                is_closing = slot.is_held and slot.engine is None
                self._leaving = self._victims(slot)
                if not (self._leaving or is_closing or self._lacking_bytes(slot) > 0):
                    return True
                if idle := [s for s in self._leaving if s.engine is not None and not s.n_users]:
                    await self._unload(idle[0])
                else:
                    await self._changed.wait()
            return slot.engine is not None
        finally:
            self._leaving = ()

    def _lacking_bytes(self, slot: _Slot) -> int:
        """Returns how much memory has to become free before ``slot`` fits; none if it is held."""
        if self._memory_bytes is None or slot.is_held:
            return 0
        held = sum(s.offer.n_bytes for s in self._slots.values() if s.is_held)
        return held + slot.offer.n_bytes - self._memory_bytes

    def _victims(self, slot: _Slot) -> list[_Slot]:
        """Returns the models that make room for ``slot``: unused ones, longest unused first."""
        lacking = self._lacking_bytes(slot)
        held = [s for s in self._slots.values() if s.is_held]
        victims: list[_Slot] = []
        for victim in sorted(held, key=lambda s: (s.engine is None, s.n_users > 0, s.used_s)):
            if lacking > 0:
                victims.append(victim)
                lacking -= victim.offer.n_bytes
        return victims

    async def _load_into(self, slot: _Slot) -> None:
        try:
            slot.engine = await asyncio.to_thread(self._load, slot.offer.bundle)
        except EdgedecError as error:
            message = f"{slot.offer.name} cannot be loaded: {error}"
            raise ServeError(500, "server_error", message) from error
        finally:
            slot.is_held = slot.engine is not None

    async def _unload(self, slot: _Slot) -> None:
        if slot.engine is not None:
            engine, slot.engine = slot.engine, None
            try:
                await finished(asyncio.to_thread(engine.close))
            finally:
                slot.is_held = False
                self._report_change()

    def _expire(self, slot: _Slot, after_s: float | None) -> None:
        """Has a model that nobody uses go after a while; None for never."""
        if slot.expires is not None:
            slot.expires.cancel()
        if slot.n_users or after_s is None or after_s < 0:
            return
        loop = asyncio.get_running_loop()
        slot.expires = loop.call_later(after_s, lambda: loop.create_task(self._let_go(slot)))

    async def _let_go(self, slot: _Slot) -> None:
        if not slot.n_users:
            await self._unload(slot)

    def _report_change(self) -> None:
        """Wakes the model that waits for room."""
        self._changed.set()
        self._changed = asyncio.Event()
