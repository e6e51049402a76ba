"""What followed the last words in texts on disk."""

from __future__ import annotations

from edgedec.runtime.drafting.drafter import Drafter
from edgedec.runtime.drafting.drafter_parts import DrafterParts, Need
from edgedec.runtime.drafting.drafters import FreeMethod


def _make(parts: DrafterParts) -> Drafter:
    from edgedec.runtime.drafting.drafters.store.store_drafter import StoreDrafter

    assert parts.store is not None
    return StoreDrafter(parts.store, parts.is_store_growing)


METHOD = FreeMethod("what followed the last words in texts on disk", _make, Need.STORE)
