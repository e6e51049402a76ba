"""Target and draft sessions for drafting while the target model verifies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.decoding.strategy import DecodingStrategy
from edgedec.runtime.drafting.core_split import CoreSplit
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.drafting.drafter import Budget, DraftPrompt
from edgedec.runtime.drafting.drafters.draft.draft_model import DraftModelDrafter
from edgedec.runtime.drafting.drafters.draft.overlapped import OverlappedDrafter, OverlappedDrafting
from edgedec.runtime.drafting.drafters.draft.tree_drafting import TreeDrafting
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.text.token_map import TokenMap

from ...conftest import OnePool, ToySession, prefix_of
from ...draft_toys import PROMPT, VOCAB, ToyMask, generate

BUDGET = Budget(n_nodes=7, depth=4, min_value=0.02, min_step_value=0.25, n_step_nodes=2)
NOW = Budget(n_nodes=5, depth=5, min_step_value=float("inf"))
"""Asks for what is there."""

LONG = GenerationConfig(max_new_tokens=60)
PAIRS: list[Pair] = []
"""Closed after each test."""

Rule = Callable[[Sequence[int]], npt.NDArray[np.float32]]


def sure(prefix: Sequence[int]) -> npt.NDArray[np.float32]:
    """Returns logits that leave little doubt."""
    rng = np.random.default_rng([len(prefix), *prefix[-3:]])
    return (9 * rng.standard_normal(VOCAB)).astype(np.float32)


def certain(prefix: Sequence[int]) -> npt.NDArray[np.float32]:
    """Returns logits that leave none."""
    return 20 * sure(prefix)


def mostly(prefix: Sequence[int]) -> npt.NDArray[np.float32]:
    """Returns the logits of `sure`, one time in four those of something else."""
    return sure(prefix if sum(prefix) % 4 else [*prefix, 1])


class DraftSession(ToySession):
    """Notes what it computes and in which thread; it fails there on request."""

    def __init__(self, rule: Rule = sure, context: int = 256) -> None:
        super().__init__(VOCAB, context, rule)
        self.computed: list[tuple[int, ...]] = []
        self.n_early_passes = 0
        self.failure: BaseException | None = None

    def begin(self, wanted: Pass) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.n_early_passes += 1
            if self.failure is not None:
                raise self.failure
        super().begin(wanted)

    def finish(self, wanted: Pass) -> None:
        super().finish(wanted)
        new = range(wanted.n_known, len(wanted.tree))
        self.computed += [tuple(prefix_of(wanted, i)) for i in new]

    def plain(self, text: Sequence[int], n: int) -> list[int]:
        """Returns what greedy decoding of it alone makes of ``text``."""
        found = list(text)
        for _ in range(n):
            found.append(int(self.toy.rule(found).argmax()))
        return found[len(text) :]


class Inline:
    """In place of a thread: everything is done when it is asked for."""

    def __init__(self, *_: Any) -> None: ...

    def submit(self, call: Callable[..., None], *arguments: Any) -> Future[None]:
        future: Future[None] = Future()
        try:
            future.set_result(call(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self) -> None: ...


def model_over(session: DraftSession) -> DraftModelDrafter:
    return DraftModelDrafter(DraftRole(OnePool(session), TokenMap.same(VOCAB, VOCAB), VOCAB))


def drafting_over(session: DraftSession) -> TreeDrafting:
    return model_over(session).begin(DraftPrompt(PROMPT))


class WatchedDrafter(OverlappedDrafter):
    """Shows its part in the latest request."""

    latest: OverlappedDrafting | None = None

    def begin(self, prompt: DraftPrompt) -> OverlappedDrafting:
        self.latest = super().begin(prompt)
        return self.latest

    @property
    def running(self) -> Future[None] | None:
        """What the thread is doing."""
        return self.latest._running if self.latest else None

    @property
    def n_passes(self) -> int:
        """Passes that the latest proposal took."""
        return self.latest.passes.cost.n_passes if self.latest else 0

    @property
    def n_overlapped(self) -> int:
        """Rounds in which it drafted on."""
        return self.latest.rounds[True].n_rounds if self.latest else 0


class Pair:
    """A target and a draft session, and the strategy `draft` over them."""

    def __init__(self, rule: Rule = mostly, is_measured: bool = False, context: int = 256) -> None:
        self.target = ToySession(VOCAB, context, sure)
        self.draft = DraftSession(rule, context)
        split = CoreSplit(is_measured=is_measured, reason="")
        self.drafter = WatchedDrafter(model_over(self.draft), split)
        planner = FixedPlanner([], BUDGET, model=self.drafter)
        self.strategy: DecodingStrategy = Speculative(planner)
        PAIRS.append(self)

    def run(self, config: GenerationConfig = LONG, mask: ToyMask | None = None) -> Any:
        return generate(self.target, PROMPT, config, self.strategy, mask)

    def check_rewound(self, tokens: Sequence[int]) -> None:
        for session in (self.target, self.draft):
            assert list(session.tokens) == [*PROMPT, *tokens][: session.n_tokens]


def wait_for(pair: Pair, n_passes: int) -> None:
    """Has every pass of the target last until the draft made so many, or has nothing to do."""

    def before_pass() -> None:
        running = pair.drafter.running
        aim = pair.draft.n_early_passes + n_passes
        while running is not None and pair.draft.n_early_passes < aim and not running.done():
            threading.Event().wait(0.0005)

    pair.target.before_pass = before_pass


class Placed(DraftSession):
    """Notes where its passes run."""

    def __init__(self, rule: Rule = sure) -> None:
        super().__init__(rule)
        self.cores: Affinity | None = None
        self.seen: list[Affinity | None] = []

    def place(self, cores: Affinity | None) -> None:
        self.cores = cores

    def begin(self, wanted: Pass) -> None:
        self.seen.append(self.cores)
        super().begin(wanted)
