"""Proposes what followed the end of the text where it occurred before, in prompt or output.

Text that copies from the prompt is found again after every edit, as soon as a suffix of it is:
input-guided aggressive decoding without its restriction to one input.

Source: Aggressive Decoding (Ge et al., 2022), Prompt Lookup Decoding (Saxena, 2023); matches of any
length as in SAM-Decoding (Hu et al., 2024).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from edgedec.runtime.drafting.best_first import AcceptanceRates, BestFirst, Option
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, RoundOutcome
from edgedec.runtime.drafting.match_classes import match_class, match_priors

from .suffix_automaton import START, SuffixAutomaton

_N_BRANCHES = 3
_N_IDLE = 4  # texts whose index is kept, for the next turns of their conversations
_N_SHORTER = 2  # shorter matches asked for what the longest does not know


class PromptLookup:
    """Finds the longest suffix of the text that occurred before; an incremental index does it.

    Where occurrences went on differently, the frequent ones branch off, the latest first of equals.
    """

    name = "lookup"
    hidden_layers = ()

    def __init__(self) -> None:
        self._rates = AcceptanceRates(match_priors())
        self._idle: deque[SuffixAutomaton] = deque(maxlen=_N_IDLE)

    def begin(self, prompt: DraftPrompt) -> LookupDrafting:
        """Returns the part of a request, with the index of an earlier text the prompt goes on."""
        tokens = list(prompt.tokens)
        found = [index for index in self._idle if tokens[: len(index.tokens)] == index.tokens]
        index = max(found, key=lambda index: len(index.tokens), default=None)
        if index is None:
            index = SuffixAutomaton()
        else:
            self._idle.remove(index)
        return LookupDrafting(self._rates, index, tokens, self._idle.append)

    def close(self) -> None:
        self._idle.clear()


class LookupDrafting:
    """The index of one request's text."""

    def __init__(
        self,
        rates: AcceptanceRates,
        index: SuffixAutomaton,
        tokens: Sequence[int],
        give_back: Callable[[SuffixAutomaton], None],
    ) -> None:
        """index: of a beginning of ``tokens``; ``give_back`` gets it when the output ended."""
        self._index = index
        self._give_back = give_back
        self._growth: BestFirst[tuple[int, int]] = BestFirst(PromptLookup.name, rates)
        self._follow(tokens)

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        self._follow(context.tokens)
        return self._growth.grow(len(context.tokens), self._first(), self._options, budget)

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        self._growth.learn(len(context.tokens), outcome.emitted)

    def end(self, tokens: Sequence[int]) -> None:
        is_beyond = len(self._index.tokens) > len(tokens)
        self._give_back(SuffixAutomaton(tokens) if is_beyond else self._index)

    def longest_match(self) -> int:
        """Returns the length of the longest suffix that occurs earlier in the text followed."""
        return self._index.length(self._index.longest_repeat())

    def _follow(self, tokens: Sequence[int]) -> None:
        index = self._index
        for token in tokens[len(index.tokens) :]:
            index.append(token)

    def _first(self) -> list[Option[tuple[int, int]]]:
        """Returns what may follow the text, by its longest match and by shorter ones."""
        index, options = self._index, list[Option[tuple[int, int]]]()
        state, left, taken = index.longest_repeat(), 1.0, set[int]()
        for _ in range(1 + _N_SHORTER):
            if state == START or left < 0.1:
                break
            kind = match_class(index.length(state), 1)
            rest = left
            for token, share, to in self._shares(state, taken):
                options.append(Option(token, rest * share, kind, (to, index.length(state))))
                left -= self._growth.probability(rest * share, kind)
                taken.add(token)
            state = index.shorter(state)
        return options

    def _options(self, state: tuple[int, int], depth: int) -> list[Option[tuple[int, int]]]:
        at, length = state
        found = self._shares(at, set())
        while not found and at != START:  # the end of the text: it may be a loop
            at = self._index.shorter(at)
            length = min(length, self._index.length(at))
            found = self._shares(at, set())
        if length == 0:
            return []
        kind = match_class(length, depth + 1)
        return [Option(token, share, kind, (to, length)) for token, share, to in found]

    def _shares(self, state: int, taken: set[int]) -> list[tuple[int, float, int]]:
        """Returns the likeliest tokens after ``state`` that are not ``taken``: token, share, state.

        The latest occurrence counts twice: texts go on as they went of late.
        """
        found = [f for f in self._index.followers(state) if f[0] not in taken]
        if len(found) == 1:
            return [(found[0][0], 1.0, found[0][1])]
        found.sort(key=lambda f: (f[2], f[3]), reverse=True)
        newest = max((f[3] for f in found), default=-1)
        total = sum(f[2] for f in found) + 1
        return [
            (token, (count + (latest == newest)) / total, to)
            for token, to, count, latest in found[:_N_BRANCHES]
        ]
