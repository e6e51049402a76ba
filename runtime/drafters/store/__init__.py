"""What followed the last words in texts on disk."""

from __future__ import annotations

from edgedec.runtime.drafters import DrafterParts, FreeMethod, Need
from edgedec.runtime.drafting.drafter import Drafter


def _make(parts: DrafterParts) -> Drafter:
    from edgedec.runtime.drafters.store.store_drafter import StoreDrafter

    assert parts.store is not None
    return StoreDrafter(parts.store, parts.is_store_growing)


METHOD = FreeMethod("what followed the last words in texts on disk", _make, Need.STORE)
