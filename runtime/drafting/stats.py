"""What a generation did, in counters that add up. Rates and totals are derived, never stored."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgedec.runtime.drafting.draft_tree import DraftTree


@dataclass
class DraftCounts:
    """What became of drafted tokens; never more accepted than evaluated, than proposed."""

    n_proposed: int = 0
    n_evaluated: int = 0
    n_accepted: int = 0

    @classmethod
    def total(cls, parts: Iterable[DraftCounts]) -> DraftCounts:
        """Returns the sum of ``parts``."""
        total = cls()
        for part in parts:
            total.n_proposed += part.n_proposed
            total.n_evaluated += part.n_evaluated
            total.n_accepted += part.n_accepted
        return total

    @property
    def acceptance_rate(self) -> float:
        """Accepted / evaluated; 0 when nothing was evaluated."""
        return self.n_accepted / self.n_evaluated if self.n_evaluated else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Returns counters and rate, JSON-ready."""
        return {
            "n_proposed": self.n_proposed,
            "n_evaluated": self.n_evaluated,
            "n_accepted": self.n_accepted,
            "acceptance_rate": self.acceptance_rate,
        }


@dataclass
class DecodeStats:
    """Counters of one generation. Plain decoding leaves those of drafting at zero.

    A drafted token is proposed when the target model computes its row. It is evaluated when its
    parent was accepted (or is the last emitted token) and the verifier decided on it: of a chain,
    the tokens up to the first rejection; of siblings all, except with verifiers that try one after
    the other, which leave those after the accepted one undecided. It is accepted when it is kept.

    Every completed pass emits the tokens it accepted and one more, prefill one token, so

        tokens of the output = 1 + n_carried + n_accepted + n_passes + n_copied - n_discarded.

    Switching that trusts the draft model has no such rounds: only passes of the
    target model and their tokens count here, the rest is in `GenerationResult.switch`.

    n_correction: tokens chosen after a rejection.
    n_bonus: tokens chosen after full acceptance.
    n_prefill_tokens: prompt tokens computed.
    n_reused_tokens: prompt tokens found in the KV cache.
    n_passes: passes of the target model after prefill: drafting rounds, and steps without drafts.
    n_pass_tokens: tokens those passes emitted, without the discarded ones.
    n_copied: tokens that a pass of the target model of switching gave besides its own next one,
        because they were looked up in the text and are what it says.
    n_provisional: tokens written before the prompt was read to its end. n_confirmed: those of them
        that hold. n_carried: of these, those whose rows the pass that ended prefill computed and
        that were emitted, without the last token that it gave.
    n_discarded: tokens found after the one that ended the output.
    draft_ms: time spent on proposing. verify_ms: time of the rounds' passes and their verification.
    drafted: drafter -> counts by depth; the first are those of depth 1.
    failed_drafters: drafter -> why it was switched off.
    """

    n_correction: int = 0
    n_bonus: int = 0
    n_prefill_tokens: int = 0
    n_reused_tokens: int = 0
    n_passes: int = 0
    n_pass_tokens: int = 0
    n_copied: int = 0
    n_provisional: int = 0
    n_confirmed: int = 0
    n_carried: int = 0
    n_discarded: int = 0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    drafted: dict[str, list[DraftCounts]] = field(default_factory=dict)
    failed_drafters: dict[str, str] = field(default_factory=dict)

    @property
    def n_rounds(self) -> int:
        """Completed drafting rounds: passes over at least one drafted token."""
        return self.n_correction + self.n_bonus

    @property
    def n_proposed(self) -> int:
        """Tokens drafted."""
        return self.total_drafted.n_proposed

    @property
    def n_evaluated(self) -> int:
        """Drafted tokens compared with the target model."""
        return self.total_drafted.n_evaluated

    @property
    def n_accepted(self) -> int:
        """Drafted tokens kept."""
        return self.total_drafted.n_accepted

    @property
    def total_drafted(self) -> DraftCounts:
        """Counts of all drafters at all depths."""
        return DraftCounts.total(count for counts in self.drafted.values() for count in counts)

    @property
    def acceptance_rate(self) -> float:
        """Accepted / evaluated; 0 when nothing was evaluated."""
        return self.total_drafted.acceptance_rate

    @property
    def block_efficiency(self) -> float:
        """Tokens emitted per target model pass after prefill; 1 for plain decoding."""
        return self.n_pass_tokens / self.n_passes if self.n_passes else 0.0

    def by_drafter(self) -> dict[str, DraftCounts]:
        """Returns the counts of each drafter."""
        return {name: DraftCounts.total(counts) for name, counts in self.drafted.items()}

    def by_depth(self) -> list[DraftCounts]:
        """Returns the counts at each depth, from 1."""
        deepest = max(map(len, self.drafted.values()), default=0)
        levels = [[c[i] for c in self.drafted.values() if i < len(c)] for i in range(deepest)]
        return [DraftCounts.total(level) for level in levels]

    def count_pass(
        self, tree: DraftTree, evaluated: Collection[int], path: Sequence[int], is_bonus: bool
    ) -> None:
        """Counts a pass of the target model over ``tree``.

        Args:
            evaluated: The nodes compared, among them those of ``path``, the accepted ones.
            is_bonus: Whether the token after the path follows full acceptance.
        """
        self.n_passes += 1
        self.n_pass_tokens += len(path) + 1
        if not len(tree):
            return
        self.n_bonus += is_bonus
        self.n_correction += not is_bonus
        for i, node in enumerate(tree.nodes):
            counts = self.drafted.setdefault(node.origin, [])
            counts.extend(DraftCounts() for _ in range(node.depth - len(counts)))
            counts[node.depth - 1].n_proposed += 1
            counts[node.depth - 1].n_evaluated += i in evaluated
            counts[node.depth - 1].n_accepted += i in path

    def discard(self, n_tokens: int) -> None:
        """Takes back the last tokens of the latest pass, which the output ended before."""
        self.n_discarded += n_tokens
        self.n_pass_tokens -= n_tokens

    def to_dict(self) -> dict[str, Any]:
        """Returns counters and rates, JSON-ready."""
        return {
            **self.total_drafted.to_dict(),
            "n_correction": self.n_correction,
            "n_bonus": self.n_bonus,
            "n_rounds": self.n_rounds,
            "n_prefill_tokens": self.n_prefill_tokens,
            "n_reused_tokens": self.n_reused_tokens,
            "n_passes": self.n_passes,
            "n_pass_tokens": self.n_pass_tokens,
            "n_provisional": self.n_provisional,
            "n_confirmed": self.n_confirmed,
            "n_discarded": self.n_discarded,
            "block_efficiency": self.block_efficiency,
            "draft_ms": self.draft_ms,
            "verify_ms": self.verify_ms,
            "by_drafter": {name: counts.to_dict() for name, counts in self.by_drafter().items()},
            "by_depth": [counts.to_dict() for counts in self.by_depth()],
            "failed_drafters": dict(self.failed_drafters),
        }
