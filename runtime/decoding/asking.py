"""Which free drafters are worth the time that asking them takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.drafting.drafter import DraftContext, RoundOutcome

T = TypeVar("T")

_RATE = 0.1  # at which a round changes what others are expected to take
_MOST_CHANGE = 2.0  # times the usual; a round that took longer was disturbed
_FADING = 0.05  # what a round takes of the credit of those before it
_FIRST_CREDIT, _MOST_CREDIT = 6.0, 16.0  # rounds that may bring nothing before a rest
_LEAST_STAKE = 1 / 6  # of plain decoding's time: one accepted draft is worth that time
_FIRST_REST, _LONGEST_REST = 2, 128  # rounds
_PRICE = 0.005  # of plain decoding's time, which tries of a drafter may cost after several losses


class AskingCost:
    """Milliseconds that asking a drafter and teaching it take, learned in all requests."""

    def __init__(self) -> None:
        self.ms = 0.0
        self._n_rounds = 0

    def observe(self, ms: float) -> None:
        """Takes in a round."""
        self._n_rounds += 1
        if self._n_rounds > 1:
            ms = min(ms, _MOST_CHANGE * self.ms)
        self.ms += max(_RATE, 1 / self._n_rounds) * (ms - self.ms)


class Asking:
    """Asks a drafter in one request while its drafts save more time than asking takes.

    Otherwise it rests, and is asked again at distances that keep the price of such tries bounded.
    """

    def __init__(self, cost: AskingCost) -> None:
        self._cost = cost
        self._credit_ms: float | None = None  # saved of late; None until the first round
        self.n_rest = 0  # rounds left
        self._next_rest = _FIRST_REST
        self._n_rounds = 0
        self._is_try = False  # the first round behind a rest, in which a drafter has to catch up

    @property
    def is_on(self) -> bool:
        """Whether to ask in this round."""
        return self.n_rest == 0

    def rested(self, n_rounds: int) -> None:
        """Lets rounds pass that did not ask."""
        self._n_rounds += n_rounds
        if self.n_rest:
            self.n_rest -= n_rounds
            self._is_try = self.is_on

    def asked(self, ms: float, saved_ms: float, plain_ms: float) -> None:
        """Takes in a round that asked.

        ms: what asking and teaching took. saved_ms: what passes would have taken longer without
        its drafts. plain_ms: what a pass of plain decoding takes.
        """
        self._n_rounds += 1
        if not self._is_try:
            self._cost.observe(ms)
        self._is_try = False
        usual_ms = self._cost.ms
        # Who asks for less may lose more often, as drafts that are worth asking for may be rare.
        stake_ms = max(usual_ms, _LEAST_STAKE * plain_ms)
        if self._credit_ms is None:
            self._credit_ms = _FIRST_CREDIT * stake_ms
        faded_ms = _FADING * usual_ms / stake_ms * self._credit_ms
        credit_ms = self._credit_ms - faded_ms + saved_ms - usual_ms
        self._credit_ms = min(credit_ms, _MOST_CREDIT * stake_ms)
        if self._credit_ms > _FIRST_CREDIT * stake_ms:
            self._next_rest = _FIRST_REST
        elif self._credit_ms < 0:
            self._rest(plain_ms)

    def _rest(self, plain_ms: float) -> None:
        """Rests until a round whose number is a multiple of a power of two.

        So all that rest are tried in the same rounds, and the rounds between are plain decoding.
        """
        self._credit_ms = 0.0
        longest = min(int(self._cost.ms / (_PRICE * plain_ms)), _LONGEST_REST)
        if not longest:
            return
        length = min(self._next_rest, 1 << (longest.bit_length() - 1))
        self.n_rest = length - self._n_rounds % length
        if self.n_rest <= length // 2:
            self.n_rest += length
        self._next_rest = min(2 * length, _LONGEST_REST)


class Learner(Protocol):
    """Whoever learns from rounds, such as a `Drafting`."""

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        """Learns from a round."""


class Askings:
    """The `Asking` of each free drafter in one request, and what they took in this round.

    Drafters that propose together are asked as one.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: in seconds."""
        self._clock = clock
        self._by_name: dict[str, Asking] = {}
        self._asked_as: dict[str, str] = {}  # by origin of drafts
        self._spent_ms: dict[str, float] = {}  # on those that this round asked
        self._round_ms = 0.0
        self._began_s = 0.0
        self._n_rest = self._n_left = 0  # rounds in which all rest, and how many are left

    def add(self, name: str, cost: AskingCost, origins: Iterable[str]) -> None:
        """Counts what it costs to ask ``name``. origins: of drafts that it proposes."""
        self._by_name[name] = Asking(cost)
        self._asked_as.update(dict.fromkeys(origins, name))

    @property
    def are_off(self) -> bool:
        """Whether all rest in this round."""
        return self._n_left > 0

    def rested(self) -> None:
        """Lets a round pass in which all rest."""
        self._n_left -= 1
        if self._n_left == 0:
            for asking in self._by_name.values():
                asking.rested(self._n_rest)

    def is_on(self, name: str) -> bool:
        """Whether to ask a drafter in this round; always where its cost is not counted."""
        asking = self._by_name.get(name)
        return asking is None or asking.is_on

    def begin(self) -> None:
        """A round begins."""
        self._spent_ms = {}
        self._round_ms = 0.0
        self.resume()

    def resume(self) -> None:
        """The round goes on behind passes."""
        self._began_s = self._clock()

    def pause(self) -> None:
        """What comes next in the round are passes."""
        self._round_ms += 1000 * (self._clock() - self._began_s)

    def ask(self, name: str, propose: Callable[[], T]) -> T:
        """Returns what the drafter ``name`` proposes."""
        began_s = self._clock()
        found = propose()
        self._spent_ms[name] = 1000 * (self._clock() - began_s)
        return found

    def observe(
        self, name: str, learner: Learner, context: DraftContext, outcome: RoundOutcome
    ) -> None:
        """Tells a drafter of the round, if it was asked or is not resting."""
        if name in self._spent_ms:
            began_s = self._clock()
            learner.observe(context, outcome)
            self._spent_ms[name] += 1000 * (self._clock() - began_s)
        elif self.is_on(name):
            learner.observe(context, outcome)

    def weigh(self, outcome: RoundOutcome, costs: CostTable, can_rest: bool) -> None:
        """Ends a round: compares what each drafter took with what its drafts saved.

        can_rest: a round that asks nobody takes nothing else, either. So those that were asked
        share what it took besides.
        """
        self.pause()
        nodes, plain_ms = outcome.tree.nodes, costs.ms(1)
        row_ms = (costs.ms(len(nodes) + 1) - plain_ms) / max(len(nodes), 1)
        saved_ms = dict.fromkeys(self._by_name, 0.0)
        for i, node in enumerate(nodes):
            if (name := self._asked_as.get(node.origin)) is not None:
                saved_ms[name] += plain_ms * (i in outcome.path) - row_ms
        shared_ms = 0.0
        if can_rest and self._spent_ms:
            shared_ms = self._round_ms - sum(self._spent_ms.values())
            shared_ms = max(shared_ms, 0.0) / len(self._spent_ms)
        for name, asking in self._by_name.items():
            if name in self._spent_ms:
                asking.asked(self._spent_ms[name] + shared_ms, saved_ms[name], plain_ms)
            else:
                asking.rested(1)
        self._n_rest = self._n_left = min(
            (asking.n_rest for asking in self._by_name.values()), default=0
        )
