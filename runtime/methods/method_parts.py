"""What decoding methods are made of, and the names of some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgedec.runtime.drafting.drafter_parts import DrafterParts

if TYPE_CHECKING:  # imported by whom they are asked of, for they delay a first token
    from edgedec.runtime.decoding.unmasking import MaskedModel
    from edgedec.runtime.methods.draft_source import DraftSource
    from edgedec.runtime.methods.head_source import HeadSource

PLAIN, AUTO, DRAFT = "plain", "auto", "draft"


@dataclass(frozen=True, eq=False)
class MethodParts:
    """What methods are made of.

    context: positions of a text. hidden_layers: layers whose hidden states the target can return.
    drafters: what drafters are made of; opens the draft model and the draft head.
    draft, head: where these lie, if there are some.
    identity: names models, device and threads; costs measured for one are not used for another.
    tuned: what the bundle says of switching.
    masked: of a model that fills masks in, what it states of that.
    """

    context: int
    hidden_layers: Sequence[int] = ()
    drafters: DrafterParts = field(default_factory=DrafterParts)
    draft: DraftSource | None = None
    head: HeadSource | None = None
    identity: str = ""
    tuned: Any = None
    masked: MaskedModel | None = None
