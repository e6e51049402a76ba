"""Models by name: loaded when first asked for, unloaded when others need their memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
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


@dataclass
class _Slot:
    offer: Offer
    engine: Engine | None = None
    n_users: int = 0
    used_s: float = 0.0
    expires: asyncio.TimerHandle | None = None


class Shelf:
    """The offered models. All of it happens in the server's event loop; loading in threads."""

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
        self._changed = asyncio.Condition()

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
        slot.n_users += 1
        try:
            if slot.expires is not None:
                slot.expires.cancel()
            yield await self._engine(slot)
        finally:
            slot.n_users -= 1
            slot.used_s = time.monotonic()
            self._expire(slot, self._keep_alive_s if keep_alive_s is None else keep_alive_s)
            async with self._changed:
                self._changed.notify_all()

    async def close(self) -> None:
        """Unloads every model; their requests have ended."""
        for slot in self._slots.values():
            await self._unload(slot)

    async def _engine(self, slot: _Slot) -> Engine:
        async with self._changed:
            while slot.engine is None:
                if await self._make_room(slot.offer):
                    await finished(self._load_into(slot))
                else:
                    await self._changed.wait()
            return slot.engine

    async def _make_room(self, offer: Offer) -> bool:
        """Unloads idle models until ``offer`` fits; False if it has to wait for busy ones."""
        if self._memory_bytes is None:
            return True
        if offer.n_bytes > self._memory_bytes:
            raise ServeError(
                503,
                "unavailable_error",
                f"{offer.name} takes {bytes_text(offer.n_bytes)}, --memory allows "
                f"{bytes_text(self._memory_bytes)}",
            )
        while self._n_bytes + offer.n_bytes > self._memory_bytes:
            idle = [s for s in self._slots.values() if s.engine is not None and not s.n_users]
            if not idle:
                return False
            await self._unload(min(idle, key=lambda slot: slot.used_s))
        return True

    @property
    def _n_bytes(self) -> int:
        return sum(offer.n_bytes for offer in self.loaded)

    async def _load_into(self, slot: _Slot) -> None:
        offer = slot.offer
        try:
            slot.engine = await asyncio.to_thread(self._load, offer.bundle)
        except EdgedecError as error:
            message = f"{offer.name} cannot be loaded: {error}"
            raise ServeError(500, "server_error", message) from error

    async def _unload(self, slot: _Slot) -> None:
        if slot.engine is not None:
            engine, slot.engine = slot.engine, None
            await finished(asyncio.to_thread(engine.close))

    def _expire(self, slot: _Slot, after_s: float | None) -> None:
        """Has a model that nobody uses go after a while."""
        if slot.n_users or after_s is None or after_s < 0:
            return
        loop = asyncio.get_running_loop()
        slot.expires = loop.call_later(after_s, lambda: loop.create_task(self._let_go(slot)))

    async def _let_go(self, slot: _Slot) -> None:
        async with self._changed:
            if not slot.n_users:
                await self._unload(slot)
                self._changed.notify_all()
