"""What the planner of `auto` decided, promised and got: the material of `--explain`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Decision:
    """One round's plan.

    n_nodes: drafted tokens to verify; 0 is plain decoding. n_levels: passes of the draft model
    planned. gain: expected tokens per millisecond over those of plain decoding. model: name of the
    drafter with a model that was asked, if one was. reason: why no more.
    """

    n_nodes: int
    n_levels: int
    gain: float
    model: str = ""
    reason: str = ""

    @property
    def kind(self) -> str:
        """What the plan is called, and why it is no larger."""
        name = "free drafts" if self.n_nodes else "off"
        if self.n_levels:
            name = "draft model" if self.model == "draft" else self.model
        return f"{name} ({self.reason})" if self.reason else name


@dataclass
class _Tally:
    n_rounds: int = 0
    n_nodes: int = 0
    n_tokens: int = 0
    ms: float = 0.0
    promised: float = 0.0  # sum over rounds of gain x milliseconds


@dataclass
class DecisionLog:
    """Decisions of one output, by kind."""

    tallies: dict[str, _Tally] = field(default_factory=dict)

    def add(self, decision: Decision, n_accepted: int, ms: float) -> None:
        """Takes in a round that accepted ``n_accepted`` drafted tokens in ``ms``."""
        if (tally := self.tallies.get(kind := decision.kind)) is None:
            tally = self.tallies[kind] = _Tally()
        tally.n_rounds += 1
        tally.n_nodes += decision.n_nodes
        tally.n_tokens += 1 + n_accepted
        tally.ms += ms
        tally.promised += decision.gain * ms

    def lines(self, plain_rate: float) -> list[str]:
        """Returns one line per kind of plan. plain_rate: tokens per millisecond."""
        found = []
        for kind, tally in sorted(self.tallies.items(), key=lambda item: -item[1].n_rounds):
            observed = tally.n_tokens / tally.ms / plain_rate if tally.ms else 0.0
            found.append(
                f"{kind}: {tally.n_rounds} rounds, {tally.n_nodes / tally.n_rounds:.1f} drafted "
                f"and {tally.n_tokens / tally.n_rounds:.2f} emitted per round, gain over plain "
                f"{tally.promised / tally.ms if tally.ms else 0.0:.2f} predicted, "
                f"{observed:.2f} observed"
            )
        return found
