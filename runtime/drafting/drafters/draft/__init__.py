"""A smaller model drafts."""

from __future__ import annotations

from edgedec.runtime.drafting.drafter import ModelDrafter
from edgedec.runtime.drafting.drafter_parts import DrafterParts, Need
from edgedec.runtime.drafting.drafters import ModelMethod


def _make(parts: DrafterParts) -> ModelDrafter:
    from edgedec.runtime.drafting.drafters.draft.draft_model import DraftModelDrafter

    assert parts.draft is not None
    role = parts.draft()
    if role.mask_token is not None:
        from edgedec.runtime.drafting.drafters.draft.parallel import ParallelDrafter

        return ParallelDrafter(role, role.mask_token)
    return DraftModelDrafter(role)


METHOD = ModelMethod("what a smaller model would write", _make, Need.DRAFT_MODEL)
