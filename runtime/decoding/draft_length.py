"""How many tokens to draft in a round: the one rule of `auto`.

*Ledger.* A request may be slower than plain decoding by a small share of its time and by a part of
one step, however wrong its drafters are. A decision that could break that, should nothing of it be
accepted, is not permitted. What a request saved may be spent later: in it, and bit by bit in the
requests behind it. *Choice.* Of what is permitted the rule takes what promises most tokens per
millisecond. Promises come from what was accepted of late; what was not tried for long is believed
in again, and the ledger pays for finding out.

So a text of n tokens takes at most `1 + OVERDRAFT + STAKE / n` of plain decoding's time, beyond
credit and errors in what passes were expected to take. One of many short texts may spend `LENT` of
its credit at once: it has no time to earn anything, and what counts is the sum.
`tools/draft_replay` chose the other constants.

Sources: conservative bandits (Wu et al., 2016; Kazerouni et al., 2017) for the ledger; goodput
(SmartSpec, Liu et al., 2024, section 4) and trees by value (DySpec, Xiong et al., 2025, section 4)
for the choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.drafting.best_first import MAX_PROBABILITY
from edgedec.runtime.drafting.draft_tree import ROOT, DraftNode

OVERDRAFT = 0.01
"""Share of plain decoding's time that a request may lose."""
STAKE = 0.5
"""Plain steps that drafts may lose besides, from its first token on."""
ASKING_STAKE = 0.2
"""Plain steps that may be lost before drafters are asked no more; what is left is for drafts."""
MAX_CREDIT = 0.015
"""Share of plain decoding's time that a request may lose besides, of what earlier ones saved."""
LENT = 1.0
"""Plain steps of what earlier requests saved that one of many short ones may lose at once."""
MEMORY = 0.95
"""What a round leaves of the evidence of those before it."""
PRIOR = 0.7
"""Acceptance of a draft model's token before any was seen, where the bundle states none."""
LOOK = 0.01
"""Share of plain decoding's time that looks at a resting drafter may cost."""
PURSE = 2.0
"""Plain steps that asking a drafter may cost while it brings nothing, before it rests."""
MAX_NODES = 15
"""Drafted tokens of a pass: a row of sixteen is the anchor, and beyond sixteen rows cost more."""
HORIZON = 64
"""Tokens that what a model reads of a text has to pay for itself in."""
LEVELS = (MAX_NODES + 1) // 2
"""Levels that a draft model may draft in a round."""


class Ledger:
    """What a request took, what plain decoding would have taken, and what may still be lost.

    Each round counts in milliseconds, at what passes cost in that round.
    """

    def __init__(self, credit: float = 0.0, lent: float = 0.0) -> None:
        """credit: of earlier requests. lent: of it, may be lost at once. Units: plain steps."""
        self.credit = credit
        self.lent = lent
        self.spent_ms = self.plain_ms = 0.0

    def allowance(self, step_ms: float, stake: float) -> float:
        """Returns what the next round may take if it brings one token, as plain decoding does.

        step_ms: of plain decoding, now. stake: `STAKE` for drafts, `ASKING_STAKE` for questions.
        """
        plain_ms = self.plain_ms + step_ms
        credit_ms = min(self.credit * step_ms, MAX_CREDIT * plain_ms + self.lent * step_ms)
        return (1 + OVERDRAFT) * plain_ms + stake * step_ms + credit_ms - self.spent_ms

    def add(self, n_emitted: int, taken_ms: float, step_ms: float) -> None:
        """Takes in a round. step_ms: of plain decoding, now."""
        self.spent_ms += taken_ms
        self.plain_ms += n_emitted * step_ms


class Evidence:
    """A rate by what was expected and what came: a Gamma posterior that forgets.

    It begins, and ends where nothing is heard for long, at ``prior``, which counts as much as one
    expected token.
    """

    def __init__(self, prior: float) -> None:
        self.prior = prior
        self._expected = self._came = 0.0

    @property
    def rate(self) -> float:
        """What comes of one that is expected, on average."""
        return (self.prior + self._came) / (1 + self._expected)

    def observe(self, expected: float, came: float) -> None:
        """Takes in that ``came`` of ``expected``."""
        self._expected += expected
        self._came += came

    def forget(self) -> None:
        """Lets a round pass."""
        self._expected *= MEMORY
        self._came *= MEMORY


class DepthAcceptance:
    """Chance that a draft model's token at each depth is accepted if those before it were.

    In one text; ``general``, if given, is what earlier texts say, and learns from this one.
    """

    def __init__(self, prior: float = PRIOR, general: DepthAcceptance | None = None) -> None:
        self._general = general
        self._depths = [
            Evidence(prior if general is None else general.rate(depth))
            for depth in range(1, LEVELS + 1)
        ]

    def rate(self, depth: int) -> float:
        """Returns the chance at ``depth``, from 1."""
        return min(self._depths[min(depth, LEVELS) - 1].rate, MAX_PROBABILITY)

    def observe(self, n_levels: int, n_accepted: int) -> None:
        """Takes in a draft of ``n_levels`` levels. The first ``n_accepted`` were accepted."""
        for at in range(min(n_levels, n_accepted + 1, LEVELS)):
            self._depths[at].forget()
            self._depths[at].observe(1.0, float(at < n_accepted))
        if self._general is not None:
            self._general.observe(n_levels, n_accepted)

    def forget(self) -> None:
        """Lets a round without a draft pass."""
        for depth in self._depths:
            depth.forget()
        if self._general is not None:
            self._general.forget()


class Worth:
    """Whether asking a drafter saves more than it takes: a purse that asking is paid from.

    What its drafts save goes into it, up to `PURSE`. Where it is empty the drafter rests, and a
    look is saved up for: looks cost `LOOK` of plain decoding's time at most, whatever one costs.
    Units: plain steps.
    """

    def __init__(self, cost: float = 0.0, purse: float = PURSE) -> None:
        """cost: of being asked, as far as that is known. purse: that the text begins with."""
        self.cost = cost
        self._n_asked = 1 if cost else 0
        self.purse = purse

    @property
    def is_positive(self) -> bool:
        """Whether it is to be asked."""
        return self.purse >= 0

    def observe(self, saved: float, cost: float) -> None:
        """Takes in a round in which it was asked. saved: by its drafts, without ``cost``."""
        cost = min(max(cost, 0.0), max(2 * self.cost, 1.0))  # a longer round was disturbed
        self._n_asked += 1
        self.cost += max(0.1, 1 / self._n_asked) * (cost - self.cost)
        self.purse = min(self.purse + saved - cost, PURSE)
        if self.purse < 0:
            self.purse = -self.cost

    def rested(self) -> None:
        """Lets a round pass."""
        self.purse += LOOK


@dataclass(frozen=True, slots=True)
class Draft:
    """A decision. n_nodes: drafted tokens to verify, the likeliest first; rate: tokens per
    millisecond; reason: why no more."""

    n_nodes: int
    rate: float
    reason: str


NOTHING_PAYS, IS_BEST, IS_LIMIT = "nothing pays", "most tokens per ms", "what may be lost"


def verified(
    nodes: Sequence[DraftNode],
    trust: dict[str, Evidence],
    costs: CostTable,
    asked_ms: float,
    max_ms: float,
    max_nodes: int,
) -> Draft:
    """Returns how many of ``nodes``, which come in the order of their values, to verify.

    trust: of what drafters promise, what came true. asked_ms: what the round has cost already.
    max_ms: that it may cost in all.
    """
    values: list[float] = []
    expected, best_n, best_rate = 1.0, 0, 1.0 / (asked_ms + costs.ms(1))
    is_limited = False
    rates = {name: evidence.rate for name, evidence in trust.items()} if nodes else {}
    for n, (_, parent, _, probability, origin) in enumerate(nodes[: min(max_nodes, MAX_NODES)], 1):
        probability = min(probability * rates.get(origin, 1.0), MAX_PROBABILITY)
        value = probability if parent == ROOT else values[parent] * probability
        values.append(value)
        expected += value
        ms = asked_ms + costs.ms(n + 1)
        if expected > best_rate * ms:
            if ms > max_ms:
                is_limited = True
                break
            best_n, best_rate = n, expected / ms
        elif n > best_n + 2:
            break  # nodes behind are worth less, and rows hardly become cheaper
    reason = IS_LIMIT if is_limited else IS_BEST if best_n else NOTHING_PAYS
    return Draft(best_n, best_rate, reason)


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """What asking a model takes. read_ms: for what it missed of the text. step_ms: a level."""

    read_ms: float
    step_ms: float

    def ms(self, n_levels: int) -> float:
        """Returns what a draft of ``n_levels`` takes; its first token comes of reading."""
        return self.read_ms + (n_levels - 1) * self.step_ms


@dataclass(frozen=True, slots=True)
class Levels:
    """A decision about a model. n: levels to draft; rate: tokens per millisecond in the long run.

    reason: why no more.
    """

    n: int
    rate: float
    reason: str


def levels(
    acceptance: DepthAcceptance,
    model: ModelCosts,
    costs: CostTable,
    max_ms: float,
    n_left: int,
    other_rate: float,
) -> Levels:
    """Returns how deep a model is to draft, 0 where ``other_rate`` promises more.

    n_left: tokens that may follow. other_rate: tokens per millisecond without it. Reading much is
    an investment, which the tokens of a `HORIZON` have to bring back.
    """
    usual = ModelCosts(min(model.read_ms, model.step_ms), model.step_ms)
    read_ms = model.read_ms - usual.read_ms
    invested_ms = read_ms / min(max(n_left, 1), HORIZON)  # a token
    expected, reached = 1.0, 1.0
    best = Levels(0, other_rate, NOTHING_PAYS)
    for n in range(1, min(n_left, LEVELS) + 1):
        reached *= acceptance.rate(n)
        expected += reached
        rate = 1 / ((usual.ms(n) + costs.ms(n + 1)) / expected + invested_ms)
        if rate <= best.rate:
            continue
        # Reading that left nothing to draft with would be lost.
        if model.ms(n) + costs.ms(n + 1) + read_ms / 2 > max_ms:
            return Levels(best.n, best.rate, IS_LIMIT)
        best = Levels(n, rate, IS_BEST)
    return best
