"""Light heads draft, one for each token, none of which sees what the others drafted."""

from __future__ import annotations

from edgedec.runtime.drafting.core_split import CoreSplit
from edgedec.runtime.drafting.drafter import ModelDrafter
from edgedec.runtime.drafting.drafter_parts import DrafterParts, Need
from edgedec.runtime.drafting.drafters import ModelMethod


def _make(parts: DrafterParts, split: CoreSplit | None) -> ModelDrafter:
    from edgedec.labs.drafters.hydra.light_drafter import LightDrafter

    return LightDrafter("medusa", parts.heads[Need.MEDUSA]())


METHOD = ModelMethod(
    "what light heads guess, trained on the model's last hidden state, each by itself",
    _make,
    Need.MEDUSA,
)
