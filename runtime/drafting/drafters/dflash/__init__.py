"""Layers that fill masks in behind the text draft a block in one pass."""

from __future__ import annotations

from edgedec.runtime.drafting.drafter import ModelDrafter
from edgedec.runtime.drafting.drafter_parts import DrafterParts, Need
from edgedec.runtime.drafting.drafters import ModelMethod


def _make(parts: DrafterParts) -> ModelDrafter:
    from edgedec.runtime.drafting.drafters.dflash.dflash_drafter import DFlashDrafter

    return DFlashDrafter(parts.heads[Need.DFLASH]())


METHOD = ModelMethod(
    "what layers of a publisher fill into a block of masks, in one pass", _make, Need.DFLASH
)
