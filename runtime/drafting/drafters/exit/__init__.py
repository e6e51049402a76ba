"""The first layers of the target model draft, and a head that ends it early."""

from __future__ import annotations

from edgedec.runtime.drafting.drafter import ModelDrafter
from edgedec.runtime.drafting.drafter_parts import DrafterParts, Need
from edgedec.runtime.drafting.drafters import ModelMethod


def _make(parts: DrafterParts) -> ModelDrafter:
    from edgedec.runtime.drafting.drafters.exit.exit_drafter import ExitDrafter

    return ExitDrafter(parts.heads[Need.EXIT]())


METHOD = ModelMethod(
    "what the model itself would write if it ended after its first layers", _make, Need.EXIT
)
