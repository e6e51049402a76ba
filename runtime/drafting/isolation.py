"""Drafters that cannot do harm: one that fails is switched off, and the text goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import (
    Budget,
    DraftContext,
    Drafter,
    Drafting,
    DraftPrompt,
    ModelDrafter,
    ModelDrafting,
    RoundOutcome,
)
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.sequence import TokenSequence

_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


class Isolation:
    """Calls a drafter until its first error, from then on in no request but to end it.

    failure: why it was switched off.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.failure: str | None = None

    def call(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | None:
        """Returns what ``call`` does; None once the drafter is off."""
        if self.failure is not None:
            return None
        try:
            return call(*args, **options)
        except Exception as error:  # whatever it is, decoding does not depend on it
            self._fail(error)
            return None

    def steps(self, passes: Callable[[], Passes[T]]) -> Passes[T | None]:
        """Returns what a drafter's step does, None once it is off; its passes may fail, too."""
        if self.failure is not None:
            return None
        try:
            return (yield from passes())
        except Exception as error:
            self._fail(error)
            return None

    def end(self, call: Callable[[], None]) -> None:
        """Calls what ends a request, even of a drafter that is off: it gives back what it took."""
        try:
            call()
        except Exception as error:
            if self.failure is None:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failure = f"{type(error).__name__}: {error}"
        _log.warning("drafter %s is switched off: %s", self.name, self.failure)


class IsolatedDrafter:
    """Another `Drafter`, until its first error; from then on it proposes nothing."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.isolation = Isolation(drafter.name)
        self.name = drafter.name
        self.hidden_layers = tuple(drafter.hidden_layers)

    def begin(self, prompt: DraftPrompt) -> IsolatedDrafting:
        """Returns the part of a new output's request."""
        return IsolatedDrafting(self.isolation, self.isolation.call(self._drafter.begin, prompt))

    def close(self) -> None:
        """Releases whatever the drafter holds."""
        self._drafter.close()


class IsolatedDrafting:
    """A `Drafting` whose errors its drafter's `Isolation` catches; none if it could not begin."""

    def __init__(self, isolation: Isolation, drafting: Drafting | None) -> None:
        self.isolation = isolation
        self._drafting = drafting

    @property
    def name(self) -> str:
        return self.isolation.name

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        drafting = self._drafting
        if drafting is None:
            return DraftTree()
        return self.isolation.call(drafting.propose, context, budget) or DraftTree()

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        if (drafting := self._drafting) is not None:
            self.isolation.call(drafting.observe, context, outcome)

    def end(self, tokens: Sequence[int]) -> None:
        if (drafting := self._drafting) is not None:
            self.isolation.call(drafting.end, tokens)


class IsolatedModelDrafter:
    """Another `ModelDrafter`, until its first error."""

    def __init__(self, drafter: ModelDrafter) -> None:
        self._drafter = drafter
        self.isolation = Isolation(drafter.name)
        self.name = drafter.name
        self.hidden_layers = tuple(drafter.hidden_layers)

    def begin(self, prompt: DraftPrompt) -> IsolatedModelDrafting | None:
        """Returns the part of a new output's request; None if the drafter is off."""
        drafting = self.isolation.call(self._drafter.begin, prompt)
        return None if drafting is None else IsolatedModelDrafting(self.isolation, drafting)

    def close(self) -> None:
        """Releases the model."""
        self._drafter.close()


class IsolatedModelDrafting:
    """A `ModelDrafting` whose errors its drafter's `Isolation` catches.

    drafting: itself, to be asked about costs.
    """

    def __init__(self, isolation: Isolation, drafting: ModelDrafting) -> None:
        self.isolation = isolation
        self.drafting = drafting

    @property
    def name(self) -> str:
        return self.isolation.name

    @property
    def is_off(self) -> bool:
        """It failed, and is not asked again."""
        return self.isolation.failure is not None

    def price(self, row_ms: float, step_ms: float) -> None:
        """Takes in what `DraftPasses.price` does."""
        self.isolation.call(self.drafting.passes.price, row_ms, step_ms)

    def propose(self, context: DraftContext, budget: Budget) -> Passes[DraftTree]:
        tree = yield from self.isolation.steps(lambda: self.drafting.propose(context, budget))
        return tree or DraftTree()

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        self.isolation.call(self.drafting.observe, context, outcome)

    def use_idle_time(self, tokens: Sequence[int], target: TokenSequence) -> Passes[int]:
        steps = self.isolation.steps(lambda: self.drafting.use_idle_time(tokens, target))
        return (yield from steps) or 0

    def end(self, tokens: Sequence[int]) -> None:
        self.isolation.end(lambda: self.drafting.end(tokens))


def failures(isolations: Iterable[Isolation]) -> dict[str, str]:
    """Returns the names of the drafters that are switched off, and why."""
    return {
        isolation.name: isolation.failure
        for isolation in isolations
        if isolation.failure is not None
    }
