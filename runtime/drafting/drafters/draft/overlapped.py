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
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from edgedec.runtime.drafting.core_split import CoreSplit
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import (
    Budget,
    DraftContext,
    DraftPrompt,
    RoundOutcome,
)
from edgedec.runtime.drafting.drafters.draft.draft_model import DraftModelDrafter
from edgedec.runtime.drafting.drafters.draft.tree_drafting import TreeDrafting
from edgedec.runtime.sequences.passes import Pass, Passes, run_passes
from edgedec.runtime.sequences.rows import Rows

_BLOCK = 8  # rounds in a row with overlap, or without
_N_BLOCKS = 4  # of a trial
_HOLD = 256  # rounds between trials


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
    """A `DraftModelDrafter` with a thread of its own; what requests share of it."""

    name = DraftModelDrafter.name
    hidden_layers = ()

    def __init__(
        self, model: DraftModelDrafter, split: CoreSplit, gauge: OverlapGauge | None = None
    ) -> None:
        """split: processors of the two models while both compute at the same time."""
        self._model = model
        self.split = split
        self.gauge = gauge or OverlapGauge(split.is_measured)
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, prompt: DraftPrompt) -> OverlappedDrafting:
        """Returns the part of a request."""
        return OverlappedDrafting(self, self._model, prompt)

    def submit(self, passes: Passes[None]) -> Future[None]:
        """Runs a step in the thread."""
        self._pool = self._pool or ThreadPoolExecutor(1, "edgedec-draft")
        return self._pool.submit(run_passes, passes)

    def close(self) -> None:
        """Ends the thread."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._model.close()


class OverlappedDrafting(TreeDrafting):
    """One request's part; errors in the thread are raised by `observe`."""

    def __init__(
        self, overlap: OverlappedDrafter, model: DraftModelDrafter, prompt: DraftPrompt
    ) -> None:
        super().__init__(model, prompt)
        self._overlap = overlap
        self._running: Future[None] | None = None
        self._target = prompt.target
        self._is_over = threading.Event()
        self._error: Exception | None = None
        self._context: DraftContext | None = None  # of this round's proposal
        self._has_overlapped = False
        self.rounds = {True: _Tally(), False: _Tally()}

    def read_exactly(self) -> None:
        self._finish()
        super().read_exactly()

    def propose(self, context: DraftContext, budget: Budget) -> Passes[DraftTree]:
        """Returns a tree: what is there, or, without overlap, as deep as the budget likes."""
        self._finish()
        if self._overlap.gauge.is_on:
            budget = dataclasses.replace(budget, min_step_value=math.inf)
        tree = yield from super().propose(context, budget)
        self._context = context
        return tree

    def verify(
        self, pass_: Pass, context: DraftContext, tree: DraftTree, n_left: int
    ) -> Passes[Rows]:
        """Returns the rows of ``pass_``, and drafts on while the target computes them.

        The target keeps off the draft's processors meanwhile.
        """
        path = [node.token for node in tree.likeliest_chain().nodes]
        is_worthwhile = n_left > len(path) + 2  # the path, the token after it, a drafted one
        if self._context is not context or not self._overlap.gauge.is_on or not is_worthwhile:
            return (yield pass_)
        self._start_ahead(context, path)
        try:
            return (yield pass_)
        finally:
            self._finish()

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        """Learns from a round.

        Raises:
            Exception: Whatever the draft model raised while the target model verified.
        """
        self._finish()
        if self._error is not None:
            raise self._error
        super().observe(context, outcome)
        if self._context is not None and outcome.ms is not None:
            self.rounds[self._has_overlapped].add(len(outcome.emitted), outcome.ms)
            self._overlap.gauge.observe(len(outcome.emitted), outcome.ms)
        self._context, self._has_overlapped = None, False

    def end(self, tokens: Sequence[int]) -> None:
        """Waits for the thread and rewinds the draft model."""
        self._finish()
        super().end(tokens)

    def explain(self) -> list[str]:
        """Returns what overlap came to, on one line."""
        with_it, without = self.rounds[True], self.rounds[False]
        early = self.passes.early
        return [
            f"overlap: {with_it.n_rounds} rounds with, {with_it.rate:.1f} tokens/s; "
            f"{without.n_rounds} without, {without.rate:.1f} tokens/s; {early.n_drafted} "
            f"tokens drafted early, {early.n_used} used, {early.n_drafted - early.n_used} thrown "
            "away"
        ]

    def _start_ahead(self, context: DraftContext, path: Sequence[int]) -> None:
        if self._error is not None:
            return
        try:
            self._keep_apart(is_on=True)
            self._is_over.clear()
            self._running = self._overlap.submit(
                self.draft_ahead(context, path, self._is_over.is_set)
            )
            self._has_overlapped = True
        except Exception as error:  # no memory for another graph or thread
            self._error = error
            self._keep_apart(is_on=False)

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
        self._keep_apart(is_on=False)

    def _keep_apart(self, is_on: bool) -> None:
        split = self._overlap.split
        for sequence, cores in ((self._target, split.target), (self.passes.sequence, split.draft)):
            if sequence is not None and not sequence.is_closed:
                sequence.place(cores if is_on else None)
