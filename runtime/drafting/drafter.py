"""The contract of drafters: propose tokens, learn what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from edgedec.runtime.config import SamplingConfig, SpeculationConfig
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sampling.token_mask import TokenMask
from edgedec.runtime.sessions.row_stats import RowStats


@dataclass(frozen=True)
class DraftContext:
    """What a drafter may look at.

    tokens: prompt and output so far; the last one is the anchor the drafts follow.
    n_prompt: how many of them are the prompt.
    mask: the grammar the output has to follow, if any.
    speculation: how much the request lets a round draft.
    """

    tokens: Sequence[int]
    n_prompt: int
    sampling: SamplingConfig
    noise: Noise
    mask: TokenMask | None = None
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)


@dataclass(frozen=True)
class Budget:
    """How much may be drafted.

    n_nodes: most tokens in all. depth: most tokens one after the other.
    min_value: nodes less likely to be accepted than this are not worth a row.
    min_step_value: a draft model stops when the nodes it would expand next are, together, less
        likely to be accepted than this.
    n_step_nodes: most nodes a draft model expands in one pass.
    """

    n_nodes: int
    depth: int
    min_value: float = 0.0
    min_step_value: float = 0.0
    n_step_nodes: int = 1


@dataclass(frozen=True)
class RoundOutcome:
    """What verification made of a round. Also reported after plain steps, with an empty tree.

    tree: the tree as verified, possibly fused from several drafters and pruned.
    path: accepted nodes, root first.
    emitted: tokens of the path and the correction or bonus token.
    stats: of the verified rows: row 0 after the anchor, row i + 1 after node i.
    """

    tree: DraftTree
    path: tuple[int, ...]
    emitted: tuple[int, ...]
    stats: RowStats


class Drafter(Protocol):
    """Proposes tokens. It never sees the target model, only what was emitted."""

    @property
    def name(self) -> str:
        """What users, statistics and nodes call it."""

    @property
    def is_free(self) -> bool:
        """It takes microseconds, not passes of a model."""

    def begin(self, tokens: Sequence[int]) -> None:
        """A new output starts after the prompt ``tokens``."""

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        """Returns a tree within ``budget``, empty when there is nothing worth proposing."""

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        """Learns from a round; ``context`` is that of before the round."""

    def end(self, tokens: Sequence[int]) -> None:
        """The output ended with exactly ``tokens`` (prompt included): forget all beyond."""

    def close(self) -> None:
        """Releases whatever it holds."""
