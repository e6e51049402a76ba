"""A draft model that reads the target's hidden states, too, drafts in one pass."""

from __future__ import annotations

from edgedec.runtime.drafting.drafter import ModelDrafter
from edgedec.runtime.drafting.drafter_parts import DrafterParts, Need
from edgedec.runtime.drafting.drafters import ModelMethod


def _make(parts: DrafterParts) -> ModelDrafter:
    from edgedec.runtime.drafting.drafters.pard.pard_drafter import PardDrafter

    return PardDrafter(parts.heads[Need.PARD]())


METHOD = ModelMethod(
    "what a draft model of PARD 2, which reads the model's hidden states, says beside mask tokens",
    _make,
    Need.PARD,
)
