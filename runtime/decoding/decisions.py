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
    n_checked: int = 0  # rounds that verified drafts
    n_asked: int = 0  # rounds in which a drafter with a model was asked
    ms: float = 0.0
    promised: float = 0.0  # sum over rounds of gain x milliseconds


@dataclass
class DecisionLog:
    """Decisions of one output, by kind. model: the latest drafter with a model that was asked."""

    tallies: dict[str, _Tally] = field(default_factory=dict)
    model: str = ""
    _rounds: list[tuple[Decision, int, float]] = field(default_factory=list)

    def add(self, decision: Decision, n_accepted: int, ms: float) -> None:
        """Takes in a round that accepted ``n_accepted`` drafted tokens in ``ms``."""
        self._rounds.append((decision, n_accepted, ms))
        if (tally := self.tallies.get(kind := decision.kind)) is None:
            tally = self.tallies[kind] = _Tally()
        tally.n_rounds += 1
        tally.n_nodes += decision.n_nodes
        tally.n_tokens += 1 + n_accepted
        tally.n_checked += decision.n_nodes > 0
        if decision.model:
            tally.n_asked += 1
            self.model = decision.model
        tally.ms += ms
        tally.promised += decision.gain * ms

    def lines(self, plain_rate: float) -> list[str]:
        """Returns what drafts saved, then one line per kind of plan.

        plain_rate: tokens per millisecond.
        """
        if not self.tallies:
            return []
        lines = [self._summary(plain_rate)]
        for kind, tally in sorted(self.tallies.items(), key=lambda item: -item[1].n_rounds):
            observed = tally.n_tokens / tally.ms / plain_rate if tally.ms else 0.0
            lines.append(
                f"{kind}: {tally.n_rounds} rounds, {tally.n_nodes / tally.n_rounds:.1f} drafted "
                f"and {tally.n_tokens / tally.n_rounds:.2f} emitted per round, gain over plain "
                f"{tally.promised / tally.ms if tally.ms else 0.0:.2f} predicted, "
                f"{observed:.2f} observed"
            )
        return lines

    def round_lines(self) -> list[str]:
        """Returns a line for each round: what was drafted, why no more, and what came of it."""
        lines = []
        for n, (decision, n_accepted, ms) in enumerate(self._rounds, 1):
            line = f"round {n}: {decision.kind}"
            if decision.n_levels:
                line += f", {decision.n_levels} levels planned"
            if decision.n_nodes:
                line += f", {decision.n_nodes} drafted, {n_accepted} accepted"
            lines.append(f"{line}, gain over plain {decision.gain:.2f} predicted, {ms:.1f} ms")
        return lines

    def _summary(self, plain_rate: float) -> str:
        tallies = self.tallies.values()
        n_rounds = sum(tally.n_rounds for tally in tallies)
        text = saving(
            sum(tally.n_tokens for tally in tallies),
            sum(tally.ms for tally in tallies),
            plain_rate,
        )
        n_checked = sum(tally.n_checked for tally in tallies)
        text += f"; drafts were checked in {n_checked} of {n_rounds} rounds"
        if n_asked := sum(tally.n_asked for tally in tallies):
            model = "draft model" if self.model == "draft" else self.model
            text += f", the {model} was asked in {n_asked}"
        return text


def saving(n_tokens: int, ms: float, plain_rate: float) -> str:
    """Returns how long plain decoding would have taken, and what drafts saved or cost.

    ms: what the tokens took. plain_rate: tokens per millisecond.
    """
    plain_s, own_s = n_tokens / plain_rate / 1000, ms / 1000
    verb = "saved" if plain_s >= own_s else "cost"
    return (
        f"plain decoding would have taken about {plain_s:.2f} s for the tokens of all rounds; "
        f"drafts {verb} {abs(plain_s - own_s):.2f} s"
    )
