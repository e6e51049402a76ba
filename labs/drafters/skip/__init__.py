"""The target model drafts for itself, some of its sub-layers left out."""

from __future__ import annotations

from edgedec.runtime.drafting.core_split import CoreSplit
from edgedec.runtime.drafting.drafter import ModelDrafter
from edgedec.runtime.drafting.drafter_parts import DrafterParts, Need
from edgedec.runtime.drafting.drafters import ModelMethod


def _make(parts: DrafterParts, split: CoreSplit | None) -> ModelDrafter:
    from edgedec.labs.drafters.skip.skip_drafter import SkipDrafter

    assert parts.skip_set is not None
    return SkipDrafter(parts.skip_set)


METHOD = ModelMethod(
    "what the model itself would write with some of its sub-layers left out",
    _make,
    Need.SKIP_SET,
)
