"""A smaller model drafts; of a long text it reads what resembles the end, and the end."""

from __future__ import annotations

from edgedec.runtime.drafting.drafter import ModelDrafter
from edgedec.runtime.drafting.drafter_parts import DrafterParts, Need
from edgedec.runtime.drafting.drafters import ModelMethod


def _make(parts: DrafterParts) -> ModelDrafter:
    from edgedec.labs.drafters.rapid.rapid_drafter import RapidDrafter

    assert parts.draft is not None
    return RapidDrafter(parts.draft())


METHOD = ModelMethod(
    "what a smaller model would write after excerpts of a long text",
    _make,
    Need.DRAFT_MODEL,
    is_automatic=False,
)
