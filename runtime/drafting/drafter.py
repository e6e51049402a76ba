"""The contract of drafters: propose tokens, learn what became of them.

A `Drafter` holds what all requests share, above all what was learned; `Drafter.begin` gives each
request a part of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from edgedec.runtime.config import SamplingConfig, SpeculationConfig
from edgedec.runtime.drafting.draft_passes import DraftPasses
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sampling.token_mask import TokenMask
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import HiddenStates
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.rows import MtpRows, Rows
from edgedec.runtime.sequences.sequence import TokenSequence


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
class DraftPrompt:
    """What an output starts from.

    tokens: the prompt, which has been prefilled.
    hidden: layer -> hidden states of its last tokens, those that were computed, for the layers the
        drafter needs; to be kept.
    target: the text in the target model's KV cache, which holds all of it but the anchor whenever
        drafts are asked for. Drafters may run passes over it to propose, and nothing else.
    has_grammar: the output has to follow one.
    prediction: what the output is expected to repeat, with changes; see
        `GenerationConfig.prediction`.
    is_one_of_many: see `GenerationConfig.is_one_of_many`.

    Shapes: hidden [n, hidden_size] float32, n at most len(tokens).
    """

    tokens: Sequence[int]
    hidden: HiddenStates = field(default_factory=dict)
    target: TokenSequence | None = None
    has_grammar: bool = False
    prediction: Sequence[int] = ()
    is_one_of_many: bool = False

    @property
    def group(self) -> str:
        """Whose texts may be begun with: see `GenerationConfig.prefix_group`."""
        return "" if self.target is None else self.target.group


@dataclass(frozen=True)
class RoundOutcome:
    """What verification made of a round. Also reported after plain steps, with an empty tree.

    tree: the tree as verified, possibly fused from several drafters and pruned.
    path: accepted nodes, root first.
    emitted: tokens of the path and the correction or bonus token.
    stats: of the verified rows: row 0 after the anchor, row i + 1 after node i.
    hidden: layer -> hidden states of the same rows, for the layers the drafter needs; to be kept.
    mtp: of the same rows, where the method has light heads in the model's graph; not to be kept.
    ms: what the round took; None for the first token, which prefill gave.

    Shapes: hidden [1 + len(tree), hidden_size] float32.
    """

    tree: DraftTree
    path: tuple[int, ...]
    emitted: tuple[int, ...]
    stats: RowStats
    hidden: HiddenStates = field(default_factory=dict)
    mtp: MtpRows | None = None
    ms: float | None = None


class Drafting(Protocol):
    """A drafter's part in one request. It never sees the target model, only what was emitted."""

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        """Returns a tree within ``budget``, empty when there is nothing worth proposing."""

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        """Learns from a round; ``context`` is that of before the round.

        It may not hear of every round.
        """

    def end(self, tokens: Sequence[int]) -> None:
        """The output ended with exactly ``tokens`` (prompt included): forget all beyond.

        Called once. Nothing else is called afterwards.
        """


class Drafter(Protocol):
    """What requests share of a drafter that takes microseconds."""

    @property
    def name(self) -> str:
        """What users, statistics and nodes call it."""

    @property
    def hidden_layers(self) -> Sequence[int]:
        """Layers whose hidden states `begin` and `observe` are given."""

    def begin(self, prompt: DraftPrompt) -> Drafting:
        """Returns the part of a new output's request."""

    def close(self) -> None:
        """Releases whatever it holds."""


@dataclass(frozen=True, slots=True)
class Unread:
    """What a model that drafts has yet to read of a text.

    n_missing: tokens that its next proposal computes first. n_predicted: rows that are predicted,
    or will be, and those after them. is_end_only: it leaves out most of a long text.
    """

    n_missing: int
    n_predicted: int = 0
    is_end_only: bool = False


class ModelDrafting(ABC):
    """A `Drafting` that runs passes of a model to propose.

    passes: what runs them; knows what the latest proposal cost.
    """

    passes: DraftPasses

    @abstractmethod
    def unread(self, tokens: Sequence[int]) -> Unread:
        """Returns what the next proposal after ``tokens`` has yet to read of them."""

    @abstractmethod
    def propose(self, context: DraftContext, budget: Budget) -> Passes[DraftTree]:
        """Returns a tree as `Drafting.propose` does, after the passes that takes."""

    @abstractmethod
    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        """Learns from a round, as `Drafting.observe` does."""

    @abstractmethod
    def end(self, tokens: Sequence[int]) -> None:
        """The output ended; see `Drafting.end`."""

    def read_exactly(self) -> None:
        """Has the next proposal compute what was predicted."""
        return

    def verify(self, pass_: Pass) -> Passes[Rows]:
        """Returns the rows of the target model's pass that judges a proposal.

        A drafter that computed a part of it while it drafted may leave that out.
        """
        return (yield pass_)

    def use_idle_time(self, tokens: Sequence[int], target: TokenSequence) -> Passes[int]:
        """Gets ready, after an output, to draft the next better.

        Returns how many tokens it computed that were predicted before.

        Args:
            tokens: The finished output.
            target: Sequence of the target model that holds as much of ``tokens`` as any; it is
                left as it was.
        """
        return 0
        yield  # makes it a step without passes

    def explain(self) -> list[str]:
        """Returns what it decided for itself in this output, a line each."""
        return []


class ModelDrafter(Protocol):
    """What requests share of a drafter that runs passes of a model."""

    @property
    def name(self) -> str:
        """What users, statistics and nodes call it."""

    @property
    def hidden_layers(self) -> Sequence[int]:
        """Layers whose hidden states `begin` and `observe` are given."""

    def begin(self, prompt: DraftPrompt) -> ModelDrafting:
        """Returns the part of a new output's request."""

    def close(self) -> None:
        """Releases the model."""
