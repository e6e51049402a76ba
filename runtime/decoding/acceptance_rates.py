"""What becomes of drafted tokens, in running means that forget within some tens of tokens."""

from __future__ import annotations

from dataclasses import dataclass

_GOOD_FAITH = 10.0  # tokens of rounds with a draft model, promised and brought
_PRIOR_WEIGHT = 3.0  # rounds that what is known before a text weighs as much as
_TEXT_DECAY = 0.9  # what a round leaves of the weight of those before it


@dataclass
class Trust:
    """How estimates of a drafter compare with what came true of late.

    Sums of estimated and of accepted tokens, both decaying; a few accepted tokens of good faith
    keep the ratio sane while little is known.
    """

    decay: float = 0.95
    good_faith: float = 1.0
    estimated: float = 0.0
    accepted: float = 0.0

    @property
    def factor(self) -> float:
        """What to multiply estimates with; at most 1.2."""
        ratio = (self.accepted + self.good_faith) / (self.estimated + self.good_faith)
        return min(ratio, 1.2)

    def observe(self, estimate: float, n_accepted: float) -> None:
        """Takes in how many tokens were expected, and how many of them came true."""
        self.estimated = self.decay * self.estimated + estimate
        self.accepted = self.decay * self.accepted + n_accepted

    def forget(self) -> None:
        """A round went by without news."""
        self.estimated *= 0.99
        self.accepted *= 0.99


class DepthRates:
    """Probability that a draft model's level d is accepted, given that level d - 1 was.

    trust: in the tokens that plans by these rates promise. How deep and how wide is drafted shows
    in the proposal only, so they are approximate.
    """

    def __init__(self, prior: float, max_depth: int, decay: float = _TEXT_DECAY) -> None:
        """decay: what a round leaves of the weight of those before it."""
        self._accepted = [prior * _PRIOR_WEIGHT] * max_depth
        self._tested = [_PRIOR_WEIGHT] * max_depth
        self._decay = decay
        self._of_all: DepthRates | None = None
        self.trust = Trust(good_faith=_GOOD_FAITH)

    def of_text(self) -> DepthRates:
        """Returns the rates of one more text: they begin as these, which learn from it as well."""
        rates = DepthRates(0.0, len(self._tested))
        rates._accepted = [_PRIOR_WEIGHT * self.rate(d + 1) for d in range(len(self._tested))]
        rates._of_all, rates.trust = self, self.trust
        return rates

    def rate(self, depth: int) -> float:
        """Returns the rate at ``depth``, from 1."""
        at = min(depth, len(self._tested)) - 1
        return self._accepted[at] / self._tested[at]

    def observe(self, n_levels: int, n_accepted: int) -> None:
        """Takes in a tree of ``n_levels`` levels of which the first ``n_accepted`` held."""
        for at in range(min(n_levels, n_accepted + 1, len(self._tested))):
            self._tested[at] = self._decay * self._tested[at] + 1
            self._accepted[at] = self._decay * self._accepted[at] + (at < n_accepted)
        if self._of_all is not None:
            self._of_all.observe(n_levels, n_accepted)

    def expected_tokens(self, n_levels: int) -> float:
        """Returns how many drafted tokens of so many levels are accepted on average."""
        expected, reached = 0.0, 1.0
        for depth in range(1, n_levels + 1):
            reached *= self.rate(depth)
            expected += reached
        return expected


class Backoff:
    """Leaves something alone for longer and longer while trying it brings nothing."""

    def __init__(self, first: int, longest: int) -> None:
        self._first = first
        self._longest = longest
        self.reset()

    def reset(self) -> None:
        """Tries from now on."""
        self._n_left, self._next = 0, self._first

    def is_over(self) -> bool:
        """Whether to try this round; each call lets a round pass."""
        self._n_left -= 1
        return self._n_left < 0

    def wait(self) -> None:
        """What this round was to try waits for the next one."""
        self._n_left += 1

    def lost(self) -> None:
        """The latest try brought nothing."""
        self._n_left, self._next = self._next, min(2 * self._next, self._longest)

    @property
    def is_probe(self) -> bool:
        """Whether the latest `is_over` ended a rest."""
        return self._n_left == -1 and self._next > self._first
