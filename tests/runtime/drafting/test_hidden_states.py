"""Hidden states on their way to a drafter: of the prompt, then of each round's tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from edgedec.models.graph import Capabilities
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.drafting.draft_tree import ROOT
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, RoundOutcome
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.prefill import PREFILL_CHUNK
from edgedec.runtime.sequences.rows import Rows

from ..conftest import ToyModel, ToySession, prefix_of
from ..draft_toys import PROMPT, VOCAB, Grow, ToyDrafter, bush, generate

LAYER, WIDTH = 1, 3
LONG_PROMPT = [i * i % VOCAB for i in range(2 * PREFILL_CHUNK + 30)]


def state_of(prefix: Sequence[int]) -> npt.NDArray[np.float32]:
    """Returns the hidden state of the last of some tokens, unlike that of any other text's."""
    return np.array([len(prefix), prefix[-1], sum(prefix)], np.float32)


def states_of(tokens: Sequence[int], start: int = 0) -> npt.NDArray[np.float32]:
    return np.array([state_of(tokens[: i + 1]) for i in range(start, len(tokens))])


class HiddenModel(ToyModel):
    """Returns hidden states, which lie where those of the pass before lay."""

    def __init__(self) -> None:
        super().__init__(VOCAB)
        self.capabilities = Capabilities(trees=True, hidden=(0, LAYER))
        self.asked: list[tuple[int, ...]] = []
        self._buffer = np.empty((1024, WIDTH), np.float32)

    def rows_of(self, wanted: Pass) -> Rows:
        rows = super().rows_of(wanted)
        self.asked.append(tuple(wanted.hidden_layers))
        self._buffer[:] = np.nan
        new = range(wanted.n_known, len(wanted.tree))
        for row, i in enumerate(new):
            self._buffer[row] = state_of(prefix_of(wanted, i))
        rows.hidden = {layer: self._buffer[: len(new)] for layer in wanted.hidden_layers}
        return rows


class HiddenDrafter(ToyDrafter):
    """A drafter that keeps all hidden states it is given. rounds: with the text before each."""

    hidden_layers = (LAYER,)

    def __init__(self, truth: Sequence[int], grow: Grow) -> None:
        super().__init__(truth, grow)
        self.prompts: list[DraftPrompt] = []
        self.rounds: list[tuple[list[int], RoundOutcome]] = []

    def begin(self, prompt: DraftPrompt) -> HiddenDrafter:
        self.prompts.append(DraftPrompt(list(prompt.tokens), prompt.hidden))
        super().begin(prompt)
        return self

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        self.rounds.append((list(context.tokens), outcome))


@pytest.mark.parametrize("prompt", [PROMPT, LONG_PROMPT], ids=["short", "in chunks"])
def test_a_drafter_may_keep_what_the_model_returned(prompt: list[int]) -> None:
    config = GenerationConfig(max_new_tokens=30)
    truth = [*prompt, *generate(ToySession(VOCAB, 512), prompt, config).token_ids]
    model = HiddenModel()
    session, drafter = ToySession(VOCAB, 512, model=model), HiddenDrafter(truth, bush)
    strategy = Speculative(FixedPlanner([drafter], Budget(8, 5)))
    result = generate(session, prompt, config, strategy)
    assert [*prompt, *result.token_ids] == truth
    assert not result.stats.failed_drafters
    assert set(model.asked) == {(LAYER,)}
    (begun,) = drafter.prompts
    assert set(begun.hidden) == {LAYER}
    np.testing.assert_array_equal(begun.hidden[LAYER], states_of(prompt))
    assert drafter.rounds[0][1].hidden == {}  # of the token that the prompt's last row gave
    assert len(drafter.rounds) == 1 + result.stats.n_passes
    for text, outcome in drafter.rounds[1:]:
        tree = outcome.tree
        paths = [[], *(tree.path(i) for i in range(len(tree)))]
        expected = [state_of([*text, *(tree.nodes[i].token for i in path)]) for path in paths]
        assert set(outcome.hidden) == {LAYER}
        np.testing.assert_array_equal(outcome.hidden[LAYER], expected)
    assert any(outcome.tree.children(ROOT) for _, outcome in drafter.rounds)


def test_of_a_prompt_known_in_part_those_of_the_tokens_computed() -> None:
    config, longer = GenerationConfig(max_new_tokens=4), [*PROMPT, 5, 9, 8]
    session, drafter = ToySession(VOCAB, model=HiddenModel()), HiddenDrafter([0] * 99, bush)
    strategy = Speculative(FixedPlanner([drafter], Budget(3, 3)))
    for prompt in (PROMPT, longer):
        session.truncate(min(session.n_tokens, len(PROMPT)))
        generate(session, prompt, config, strategy)
    np.testing.assert_array_equal(
        drafter.prompts[1].hidden[LAYER], states_of(longer, start=len(PROMPT))
    )


def test_nobody_is_asked_for_hidden_states_that_no_drafter_needs() -> None:
    model, drafter = HiddenModel(), ToyDrafter([0] * 99, bush)
    strategy = Speculative(FixedPlanner([drafter], Budget(3, 3)))
    config = GenerationConfig(max_new_tokens=8)
    generate(ToySession(VOCAB, model=model), PROMPT, config, strategy)
    assert set(model.asked) == {()}
    assert all(outcome.hidden == {} for outcome in drafter.outcomes)
