"""Light heads draft, one for each token, each of which sees the tokens drafted before its own."""

from __future__ import annotations

from edgedec.runtime.drafting.core_split import CoreSplit
from edgedec.runtime.drafting.drafter import ModelDrafter
from edgedec.runtime.drafting.drafter_parts import DrafterParts, Need
from edgedec.runtime.drafting.drafters import ModelMethod


def _make(parts: DrafterParts, split: CoreSplit | None) -> ModelDrafter:
    from edgedec.labs.drafters.hydra.light_drafter import LightDrafter

    return LightDrafter("hydra", parts.heads[Need.HYDRA]())


METHOD = ModelMethod(
    "what light heads guess, trained on the model's last hidden state, one after the other",
    _make,
    Need.HYDRA,
)
