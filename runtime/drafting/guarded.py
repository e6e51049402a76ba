"""A drafter that cannot do harm: if it fails it is switched off, and the text goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, Drafter, RoundOutcome

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class GuardedDrafter:
    """Another drafter, until its first error; from then on it proposes nothing.

    failure: why it was switched off.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.failure: str | None = None

    @property
    def name(self) -> str:
        return self._drafter.name

    @property
    def is_free(self) -> bool:
        return self._drafter.is_free

    def begin(self, tokens: Sequence[int]) -> None:
        self._guard(lambda: self._drafter.begin(tokens))

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        tree = self._guard(lambda: self._drafter.propose(context, budget))
        return DraftTree() if tree is None else tree

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        self._guard(lambda: self._drafter.observe(context, outcome))

    def end(self, tokens: Sequence[int]) -> None:
        self._guard(lambda: self._drafter.end(tokens))

    def close(self) -> None:
        self._drafter.close()

    def _guard(self, call: Callable[[], _T]) -> _T | None:
        """Returns what ``call`` does; None once the drafter is off."""
        if self.failure is not None:
            return None
        try:
            return call()
        except Exception as error:  # whatever it is, decoding does not depend on it
            self.failure = f"{type(error).__name__}: {error}"
            _log.warning("drafter %s is switched off: %s", self.name, self.failure)
            return None


def failures(drafters: Iterable[GuardedDrafter]) -> dict[str, str]:
    """Returns the names of the drafters that are switched off, and why."""
    return {drafter.name: drafter.failure for drafter in drafters if drafter.failure is not None}
