"""A smaller model drafts; a probe on its hidden states says how far to believe it."""

from __future__ import annotations

from edgedec.runtime.drafting.core_split import CoreSplit
from edgedec.runtime.drafting.drafter import ModelDrafter
from edgedec.runtime.drafting.drafter_parts import DrafterParts, Need
from edgedec.runtime.drafting.drafters import ModelMethod


def _make(parts: DrafterParts, split: CoreSplit | None) -> ModelDrafter:
    from edgedec.labs.drafters.probed.probed_drafter import ProbedDrafter

    assert parts.draft is not None
    assert parts.probe is not None
    return ProbedDrafter(parts.draft(), parts.probe)


METHOD = ModelMethod(
    "what a smaller model would write, as far as a probe believes it",
    _make,
    Need.PROBE,
    is_automatic=False,
)
