"""Proposes a text that the request predicts, and finds its place in it again after each change.

Whoever asks for an edit knows what the answer will look like: the text as it is. The drafter
follows that text token by token. Where the output leaves it, the same tokens are looked for near
the place that was left, so one token that agrees is enough to go on. Lines may be changed, added,
left out and moved.

Source: input-guided decoding of Aggressive Decoding (Sun et al., 2021, section 3.2), with a nearby
match in place of its unique suffix.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from edgedec.runtime.drafting.best_first import AcceptanceRates, BestFirst, Option
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, RoundOutcome
from edgedec.runtime.drafting.drafters import FreeMethod

_RUN_STARTS = (1, 2, 4, 8, 16)
_RUN_PRIORS = (0.6, 0.8, 0.93, 0.97, 0.98)
"""Acceptance rates that drafts begin with, by the number of tokens before that agreed."""

_REPLACED, _INSERTED = len(_RUN_STARTS), len(_RUN_STARTS) + 1
_CHANGE_PRIORS = (0.4, 0.2)
"""Acceptance rates where as many tokens were replaced as came, and where all were inserted."""

_FIRST_RUN = 2  # the output is expected to begin as the prediction does
_SETTLED = 3  # tokens that agree, after which a change is over

_REACHES = (16, 64, 256, 1 << 30)
"""How far from the place that was left 1, 2, 3 and more tokens may be found again."""

_LOST = 48  # changed tokens, after which only several that agree say where to go on

_BEHIND = 8  # tokens before the place that was left, where one or two are looked for

_Place = tuple[int, int]
"""Index of the next token of the prediction, and how many before it agreed."""


class RewriteDrafter:
    """Follows the predictions of requests; learns how far it can be believed."""

    name = "rewrite"
    hidden_layers = ()

    def __init__(self) -> None:
        self._rates = AcceptanceRates(_RUN_PRIORS + _CHANGE_PRIORS)

    def begin(self, prompt: DraftPrompt) -> Rewriting:
        """Returns the part of a request, which proposes nothing where nothing is predicted."""
        return Rewriting(prompt.prediction, len(prompt.tokens), self._rates)

    def close(self) -> None:
        """Holds nothing."""


class Rewriting:
    """One request's part: a place in the prediction, and what has changed since it was left."""

    def __init__(self, prediction: Sequence[int], n_prompt: int, rates: AcceptanceRates) -> None:
        self._text = tuple(prediction)
        self._places: dict[int, list[int]] = {}
        for place, token in enumerate(self._text):
            self._places.setdefault(token, []).append(place)
        self._n_seen = n_prompt
        self._place, self._run = 0, _FIRST_RUN
        self._left: int | None = None  # where the change in the making began
        self._changed: list[int] = []  # what came since
        self._rates = rates
        self._growth: BestFirst[_Place] = BestFirst(RewriteDrafter.name, rates)

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        self._follow(context.tokens)
        return self._growth.grow(
            len(context.tokens), self._first_options(), lambda at, depth: self._after(at), budget
        )

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        self._growth.learn(len(context.tokens), outcome.emitted)

    def end(self, tokens: Sequence[int]) -> None:
        """Nothing to forget."""

    def _first_options(self) -> list[Option[_Place]]:
        """Returns what may follow: at the place found, and where a change may be over."""
        if self._left is None:
            return self._after((self._place, self._run))
        guesses = [(self._place, bisect_right(_RUN_STARTS, self._run) - 1)] if self._run else []
        if len(self._changed) < _LOST:
            guesses += [(self._left + len(self._changed), _REPLACED), (self._left, _INSERTED)]
        elif self._run < _SETTLED - 1:
            return []
        options: list[Option[_Place]] = []
        share = 1.0
        for place, kind in guesses:
            if place < len(self._text) and all(o.token != self._text[place] for o in options):
                options.append(Option(self._text[place], share, kind, (place + 1, 1)))
                share *= 1 - self._rates.probability(1.0, kind)
        return options

    def _after(self, at: _Place) -> list[Option[_Place]]:
        place, run = at
        if place >= len(self._text):
            return []
        kind = bisect_right(_RUN_STARTS, run) - 1
        return [Option(self._text[place], 1.0, kind, (place + 1, run + 1))]

    def _follow(self, tokens: Sequence[int]) -> None:
        for i in range(self._n_seen, len(tokens)):
            self._read(tokens[i])
        self._n_seen = len(tokens)

    def _read(self, token: int) -> None:
        if self._left is not None:
            self._changed.append(token)
        if self._place < len(self._text) and self._text[self._place] == token:
            self._place += 1
            self._run += 1
            if self._run >= _SETTLED:
                self._left, self._changed = None, []
            return
        if self._left is None:
            self._left, self._changed = self._place, [token]
        self._run, self._place = self._find_again(token, self._left)

    def _find_again(self, token: int, left: int) -> _Place:
        """Returns how many of the latest tokens stand near ``left``, and the place behind them."""
        best, distance = (0, left + len(self._changed)), 0
        for place in self._places.get(token, ()):
            length, away = self._agreeing(place), abs(place - left)
            is_near = length >= _SETTLED or place >= left - _BEHIND
            if away > _REACHES[min(length, len(_REACHES)) - 1] or not is_near:
                continue
            if length > best[0] or (length == best[0] and away < distance):
                best, distance = (length, place + 1), away
        return best

    def _agreeing(self, place: int) -> int:
        """Returns how many of the changed tokens, the latest first, stand up to ``place``."""
        changed, text = self._changed, self._text
        n = 0
        while n < min(len(changed), place + 1) and changed[-1 - n] == text[place - n]:
            n += 1
        return n


METHOD = FreeMethod("the text that a request predicts", lambda parts: RewriteDrafter())
