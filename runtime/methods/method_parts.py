"""What decoding methods are made of, and the names of some."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgedec.runtime.drafting.core_split import CoreSplit

if TYPE_CHECKING:  # imported by whom they are asked of, for they delay a first token
    from edgedec.runtime.decoding.prefilling import Auxiliary
    from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore
    from edgedec.runtime.drafting.probe import Probe
    from edgedec.runtime.drafting.skip_set import SkipSet
    from edgedec.runtime.methods.draft_source import DraftSource
    from edgedec.runtime.methods.head_source import HeadSource
    from edgedec.runtime.sequences.pool import SequencePool

PLAIN, AUTO, DRAFT = "plain", "auto", "draft"


@dataclass(frozen=True, eq=False)
class MethodParts:
    """What methods are made of.

    context: positions of a text. hidden_layers: layers whose hidden states the target can return.
    draft: the draft model, opened by methods that need it.
    identity: names models, device and threads; costs measured for one are not used for another.
    tuned: what the bundle says of switching. split: whether the draft model goes on while the
    target model verifies, and where. skip_set: what the target model may leave out while it drafts.
    probes: on hidden states, by kind.
    head: the draft head, if there is one. auxiliary: opens, over a pool of the draft model's, what
    predicts the target model's rows from them.
    """

    context: int
    hidden_layers: Sequence[int] = ()
    draft: DraftSource | None = None
    identity: str = ""
    store: NgramStore | None = None
    is_store_growing: bool = True
    tuned: Any = None
    split: CoreSplit = field(default_factory=CoreSplit)
    skip_set: SkipSet | None = None
    probes: Mapping[str, Probe] = field(default_factory=dict)
    head: HeadSource | None = None
    auxiliary: Callable[[SequencePool], Auxiliary] | None = None
