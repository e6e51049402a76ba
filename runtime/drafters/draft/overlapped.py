"""A draft model that goes on drafting while the target model verifies (PEARL).

It takes the most probable path of the tree under verification for accepted and drafts on below it,
first the token it expects the target model to add. If all of that comes true, the next round
begins with drafts and no time spent on them; if not, they are dropped. A round for which nothing
is there proposes what one pass of the draft model gives, so verification of that begins at once.

Which trees are proposed then depends on how long passes take, which tokens are emitted does not.

Source: PEARL (Liu et al., 2024), pre-verify and post-verify.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from edgedec.runtime.cores.affinity import Affinity
from edgedec.runtime.cores.core_split import CoreSplit
from edgedec.runtime.drafters.draft.draft_model import DraftModelDrafter
from edgedec.runtime.drafting.draft_passes import DraftCost
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, RoundOutcome
from edgedec.runtime.sessions.session import ModelSession

_BLOCK = 8  # rounds in a row with overlap, or without
_N_BLOCKS = 4  # of a trial
_HOLD = 256  # rounds between trials


@runtime_checkable
class PlacedSession(ModelSession, Protocol):
    """A session whose threads can move."""

    def place(self, cores: Affinity | None) -> None:
        """Runs passes with one thread on each of ``cores`` from now on; None: as when opened."""


@dataclass
class _Tally:
    n_rounds: int = 0
    n_tokens: int = 0
    ms: float = 0.0

    def add(self, n_tokens: int, ms: float) -> None:
        self.n_rounds += 1
        self.n_tokens += n_tokens
        self.ms += ms

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return 1000 * self.n_tokens / self.ms if self.ms else 0.0


@dataclass
class OverlapGauge:
    """Whether overlap pays: rounds with it and without it take turns, and the better goes on.

    is_measured: False has it on, always.
    """

    is_measured: bool = True
    is_on: bool = True
    _n_seen: int = 0
    _trial: dict[bool, _Tally] = field(default_factory=lambda: {True: _Tally(), False: _Tally()})

    def observe(self, n_tokens: int, ms: float) -> None:
        """Takes in a round, which emitted ``n_tokens``, and decides about the next one."""
        if not self.is_measured:
            return
        n_trial = _BLOCK * _N_BLOCKS
        # The first round of a block goes on from what the block before drafted, or did not.
        if self._n_seen < n_trial and self._n_seen % _BLOCK:
            self._trial[self.is_on].add(n_tokens, ms)
        self._n_seen += 1
        if self._n_seen < n_trial:
            self.is_on = self._n_seen // _BLOCK % 2 == 0
        elif self._n_seen == n_trial:
            self.is_on = self._trial[True].rate > self._trial[False].rate
        elif self._n_seen == n_trial + _HOLD:
            self._n_seen, self.is_on = 0, True
            self._trial = {True: _Tally(), False: _Tally()}


class OverlappedDrafter:
    """A `DraftModelDrafter` with a thread of its own; errors in there are raised by `observe`."""

    def __init__(
        self,
        model: DraftModelDrafter,
        target: ModelSession,
        split: CoreSplit,
        gauge: OverlapGauge | None = None,
    ) -> None:
        """Takes over ``model``. target: the verifying session, which keeps off the draft's cores.

        Both sessions move to their own processors while they compute at the same time, if they can.
        """
        self.name, self.is_free = model.name, model.is_free
        self._model = model
        pair = (target, split.target), (model.session, split.draft)
        self._placing = [(s, cores) for s, cores in pair if isinstance(s, PlacedSession)]
        self._gauge = gauge or OverlapGauge(split.is_measured)
        self._pool: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None
        self._is_over = threading.Event()
        self._error: Exception | None = None
        self._asked: DraftContext | None = None  # of this round's proposal
        self.clear_counts()

    @property
    def cost(self) -> DraftCost:
        """What the latest proposal cost, without what was drafted while the target verified."""
        return self._model.cost

    @property
    def n_early(self) -> int:
        """Tokens of this output that were drafted while the target model verified."""
        return self._model.early.n_drafted - self._early_before.n_drafted

    @property
    def n_early_used(self) -> int:
        """Those that came true, or that the next proposal went on from."""
        return self._model.early.n_used - self._early_before.n_used

    @property
    def reads_end_only(self) -> bool:
        """Whether the draft model leaves out the beginning of the text."""
        return self._model.reads_end_only

    def n_missing(self, tokens: Sequence[int]) -> int:
        """Returns how many tokens the next proposal after ``tokens`` has to compute first."""
        return self._model.n_missing(tokens)

    def begin(self, tokens: Sequence[int]) -> None:
        """Starts an output; see `Drafter`."""
        self._finish()
        self._model.begin(tokens)

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        """Returns a tree: what is there, or, without overlap, as deep as the budget likes."""
        self._finish()
        if self._gauge.is_on:
            budget = dataclasses.replace(budget, min_step_value=math.inf)
        tree = self._model.propose(context, budget)
        self._asked = context
        return tree

    @contextmanager
    def beside(self, context: DraftContext, tree: DraftTree, n_left: int) -> Iterator[None]:
        """Drafts on while the block runs, which verifies ``tree``.

        n_left: tokens that may still be emitted.
        """
        path = best_path(tree)
        is_worthwhile = n_left > len(path) + 2  # the path, the token after it, a drafted one
        if self._asked is not context or not self._gauge.is_on or not is_worthwhile:
            yield
            return
        self._start(context, path)
        try:
            yield
        finally:
            self._finish()

    def clear_counts(self) -> None:
        """Counts anew, for another output."""
        self._asked, self._has_overlapped = None, False
        self._early_before = dataclasses.replace(self._model.early)
        self.rounds = {True: _Tally(), False: _Tally()}

    def count_round(self, n_tokens: int, ms: float) -> None:
        """Takes in what a round emitted, and took, if this drafter was asked in it."""
        if self._asked is not None:
            self.rounds[self._has_overlapped].add(n_tokens, ms)
            self._gauge.observe(n_tokens, ms)
        self._asked, self._has_overlapped = None, False

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        """Learns from a round.

        Raises:
            Exception: Whatever the draft model raised while the target model verified.
        """
        self._finish()
        if self._error is not None:
            raise self._error
        self._model.observe(context, outcome)

    def end(self, tokens: Sequence[int]) -> None:
        """Waits for the thread and rewinds the draft model."""
        self._finish()
        self._model.end(tokens)

    def close(self) -> None:
        """Ends the thread and closes the draft model's session."""
        self._finish()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._model.close()

    def explain(self) -> list[str]:
        """Returns what overlap came to in the latest output, on one line."""
        with_it, without = self.rounds[True], self.rounds[False]
        n_dropped = self.n_early - self.n_early_used
        return [
            f"overlap: {with_it.n_rounds} rounds with, {with_it.rate:.1f} tokens/s; "
            f"{without.n_rounds} without, {without.rate:.1f} tokens/s; {self.n_early} tokens "
            f"drafted early, {self.n_early_used} used, {n_dropped} thrown away"
        ]

    def _start(self, context: DraftContext, path: Sequence[int]) -> None:
        if self._error is not None:
            return
        try:
            self._place(is_apart=True)
            self._pool = self._pool or ThreadPoolExecutor(1, "edgedec-draft")
            self._is_over.clear()
            self._running = self._pool.submit(
                self._model.draft_ahead, context, path, self._is_over.is_set
            )
            self._has_overlapped = True
        except Exception as error:  # no memory for another graph or thread
            self._error = error
            self._place(is_apart=False)

    def _finish(self) -> None:
        """Waits for the thread's pass, if one is running, and takes its error.

        An interrupt may end the waiting; then the next call goes on with it.
        """
        running = self._running
        if running is None:
            return
        self._is_over.set()
        error = running.exception()
        if isinstance(error, Exception):
            self._error = error
        self._running = None
        self._place(is_apart=False)

    def _place(self, is_apart: bool) -> None:
        for session, cores in self._placing:
            if not session.is_closed:
                session.place(cores if is_apart else None)


def best_path(tree: DraftTree) -> list[int]:
    """Returns the tokens from the root down, the likeliest child each time."""
    path: list[int] = []
    node = ROOT
    while children := tree.children(node):
        node = max(children, key=lambda i: tree.nodes[i].probability)
        path.append(tree.nodes[node].token)
    return path
