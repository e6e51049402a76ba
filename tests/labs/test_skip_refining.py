"""Sub-layers to leave out are exchanged in idle time, by what the text at hand shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgedec.labs.drafters.skip.refining import N_TRIES, WINDOW, SkipRefiner
from edgedec.labs.drafters.skip.skip_drafter import SkipDrafter
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.drafting.draft_cost import Promise
from edgedec.runtime.drafting.drafter import Budget
from edgedec.runtime.drafting.skip_set import SkipSet
from edgedec.runtime.sequences.passes import Pass, run_passes, while_idle
from edgedec.runtime.sequences.prefill import feed
from edgedec.runtime.sequences.rows import Rows

from ..runtime.conftest import ToyModel, ToySession, prefix_of
from ..runtime.draft_toys import PROMPT, open_stream

V, N_LAYERS = 24, 6
PROMISE = Promise(cost=0.5, acceptance=0.5)
NEEDED = (3, 5)
"""MLPs of layers 1 and 2, without each of which half of the tokens are others."""


class Layered(ToyModel):
    """A model that needs some of its MLPs and none of its other sub-layers."""

    def __init__(self) -> None:
        super().__init__(V)
        self.n_layers = N_LAYERS

    def rows_of(self, wanted: Pass) -> Rows:
        rows = super().rows_of(wanted).logits.copy()
        gates = wanted.layer_gates or (True,) * 2 * N_LAYERS
        for place, needed in enumerate(NEEDED):
            if not gates[needed]:
                for i, row in enumerate(wanted.logit_rows):
                    if len(prefix_of(wanted, row)) % 2 == place:
                        rows[i] = rows[i][::-1]
        return Rows(rows)


def written(n_tokens: int = 60) -> tuple[list[int], ToySession]:
    """Returns what the whole model writes, and a sequence that holds all of it but the last."""
    model, text = Layered(), [3, 1, 4]
    while len(text) < n_tokens:
        text.append(int(model.rule(text).argmax()))
    sequence = ToySession(V, 128, model=model)
    run_passes(feed(sequence, text[:-1], with_logits=False))
    return text, sequence


def test_what_the_text_needs_is_put_back() -> None:
    text, target = written()
    refiner = SkipRefiner(SkipSet((*NEEDED, 2), N_LAYERS, V, PROMISE))
    for _ in range(4):
        run_passes(refiner.refine(text, target))
    off = refiner.skip_set.off
    assert not set(off) & set(NEEDED)
    assert len([i for i in off if i % 2]) == 2  # MLPs for MLPs: what a pass costs stays
    assert not set(off) & {0, 1, 10, 11}  # nothing of the first and the last layer
    assert refiner.n_kept == 2
    n_tried = refiner.n_tried
    run_passes(refiner.refine(text, target))
    assert refiner.n_tried == n_tried  # nothing is left to find


def test_the_target_is_left_as_it_was() -> None:
    text, target = written()
    before = target.snapshot()
    refiner = SkipRefiner(SkipSet(NEEDED, N_LAYERS, V, PROMISE))
    run_passes(refiner.refine(text, target))
    after = target.snapshot()
    assert after.tokens == before.tokens
    assert all(np.array_equal(a, b) for a, b in zip(after.kv_rows, before.kv_rows, strict=True))


@pytest.mark.parametrize("n_passes", [0, 1, 3])
def test_it_ends_when_idle_time_does(n_passes: int) -> None:
    text, target = written()
    refiner, looks = SkipRefiner(SkipSet(NEEDED, N_LAYERS, V, PROMISE)), iter(range(99))
    run_passes(while_idle(refiner.refine(text, target), lambda: next(looks) >= n_passes))
    assert list(target.tokens) == text[:-1]
    assert refiner.n_tried == max(0, n_passes - 1)


def test_few_sets_are_tried_after_one_output() -> None:
    text, target = written()
    n_before = target.model.n_passes
    refiner = SkipRefiner(SkipSet(NEEDED, N_LAYERS, V, PROMISE))
    run_passes(refiner.refine([*text[:20], *reversed(text[20:])], target))
    assert target.model.n_passes == n_before  # rows before the window are another text's
    other = [*text[:-1], (text[-1] + 1) % V]  # which nothing finds
    run_passes(refiner.refine(other, target))
    assert refiner.n_tried == N_TRIES
    assert target.model.n_passes == n_before + 1 + N_TRIES


@pytest.mark.parametrize("text", [[], [1], list(range(WINDOW + 1))])
def test_short_texts_tell_too_little(text: Sequence[int]) -> None:
    target = ToySession(V, 128, model=Layered())
    refiner = SkipRefiner(SkipSet(NEEDED, N_LAYERS, V, PROMISE))
    run_passes(refiner.refine(text, target))
    assert refiner.n_tried == target.model.n_passes == 0


def test_an_idle_stream_refines_what_its_drafter_leaves_out() -> None:
    drafter = SkipDrafter(SkipSet(NEEDED, N_LAYERS, V, PROMISE))
    budget = Budget(n_nodes=3, depth=3, n_step_nodes=1)
    strategy = Speculative(FixedPlanner([], budget, model=drafter))
    session = ToySession(V, 256, model=Layered())
    stream = open_stream(session, PROMPT, GenerationConfig(max_new_tokens=60), strategy)
    text = "".join(stream)
    assert not any("sets tried" in line for line in stream.explain())
    for _ in range(3):
        assert stream.catch_up() == 0
    assert not set(drafter.refiner.skip_set.off) & set(NEEDED)
    assert "tried on the text in idle time, 2 taken over" in "".join(stream.explain())
    again = open_stream(session, PROMPT, GenerationConfig(max_new_tokens=60), strategy)
    assert "".join(again) == text
    assert again.result.stats.acceptance_rate > stream.result.stats.acceptance_rate
