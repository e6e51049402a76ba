"""A head that was trained on the target model's hidden states drafts."""

from __future__ import annotations

from edgedec.runtime.cores.core_split import CoreSplit
from edgedec.runtime.drafters import DrafterParts, ModelMethod, Need
from edgedec.runtime.drafting.drafter import ModelDrafter


def _make(parts: DrafterParts, split: CoreSplit | None) -> ModelDrafter:
    from edgedec.runtime.drafters.eagle.eagle_drafter import EagleDrafter

    return EagleDrafter(parts.open_heads[Need.EAGLE]())


METHOD = ModelMethod(
    "what a head, trained on the model's own hidden states, guesses", _make, Need.EAGLE
)
