"""A head that was trained on the target model's hidden states drafts."""

from __future__ import annotations

from edgedec.runtime.drafting.drafter import ModelDrafter
from edgedec.runtime.drafting.drafter_parts import DrafterParts, Need
from edgedec.runtime.drafting.drafters import ModelMethod


def _make(parts: DrafterParts) -> ModelDrafter:
    from edgedec.runtime.drafting.drafters.eagle.eagle_drafter import EagleDrafter

    return EagleDrafter(parts.heads[Need.EAGLE]())


METHOD = ModelMethod(
    "what a head, trained on the model's own hidden states, guesses", _make, Need.EAGLE
)
