"""What holds of every registered drafter, whatever it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from edgedec.models.draft_heads import HYDRA
from edgedec.models.errors import ConfigError
from edgedec.models.graph import N_TOP
from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import (
    Budget,
    DraftContext,
    Drafter,
    Drafting,
    DraftPrompt,
    ModelDrafter,
    ModelDrafting,
)
from edgedec.runtime.drafting.drafter_parts import DrafterParts, Need, Shared
from edgedec.runtime.drafting.drafters import FreeMethod, drafter_names, find_drafter
from edgedec.runtime.drafting.drafters.lookup import PromptLookup
from edgedec.runtime.drafting.head_role import HeadRole
from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore
from edgedec.runtime.methods.method_parts import AUTO, MethodParts
from edgedec.runtime.methods.methods import Methods
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.sequences.prefill import feed
from edgedec.runtime.sequences.rows import MtpRows
from edgedec.runtime.text.token_map import TokenMap

from ...conftest import ToySession
from ...draft_toys import HEAD_WIDTH, HIDDEN_LAYERS, LayeredToy, ToyHead, ToyMask
from .rounds import outcome_of

V, N_LIGHTS = 12, 3
PREDICTION = (1, 2, 3, 1, 2, 4, 5, 0) * 20
BUDGETS = [Budget(7, 5, 0.02), Budget(4, 4), Budget(1, 1), Budget(9, 3, 0.0, 0.1, 3), Budget(0, 0)]
SETTINGS = [SamplingConfig(), SamplingConfig(temperature=0.9)]
AnyDrafter = Drafter | ModelDrafter
MakeDrafter = Callable[[], AnyDrafter]


@dataclass
class Maker:
    """Makes a registered drafter of toy parts, again and again. pool: of its toy draft model."""

    name: str
    folder: Path
    n_made: int = 0
    is_store_growing: bool = True

    def __call__(self) -> AnyDrafter:
        method, self.n_made = find_drafter(self.name), self.n_made + 1
        store = NgramStore.open(self.folder / f"store-{self.n_made}", "ab" * 32)
        store.add(np.random.default_rng(1).integers(0, V, 400).tolist())
        store.add([1, 2, 3, 4, 5, 1, 2, 4])
        self.pool = SequencePool(LayeredToy(V), 256)
        role = DraftRole(self.pool, TokenMap.same(V, V), V)
        self.heads = SequencePool(ToyHead(V), 256)
        head = HeadRole(self.heads, TokenMap.same(V, V), V, HIDDEN_LAYERS, 1e-5)
        self.exits = SequencePool(ToyHead(V, HEAD_WIDTH), 256)
        end = replace(head, pool=self.exits, exit_costs={1: 0.3, 3: 0.8})
        self.blocks = SequencePool(ToyHead(V, 2 * HEAD_WIDTH + 2, is_masked=True), 256)
        self.pards = SequencePool(ToyHead(V, 2 * HEAD_WIDTH), 256)
        pard = replace(head, pool=self.pards, mask_token=V - 1)
        masked = replace(head, pool=self.blocks, mask_token=V - 1, block_size=6)
        parts = DrafterParts(
            store,
            self.is_store_growing,
            Shared(lambda: role),
            {
                Need.EAGLE: Shared(lambda: head),
                Need.EXIT: Shared(lambda: end),
                Need.DFLASH: Shared(lambda: masked),
                Need.PARD: Shared(lambda: pard),
            },
            HYDRA,
        )
        if isinstance(method, FreeMethod):
            return method.make(parts)
        return method.make(parts)

    def check_nothing_is_lent(self) -> None:
        assert self.pool._lent == []
        assert self.heads._lent == []
        assert self.exits._lent == []
        assert self.blocks._lent == []
        assert self.pards._lent == []


@pytest.fixture(params=drafter_names())
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    return Maker(request.param, tmp_path)


class ForcingMask(ToyMask):
    """Leaves no choice about the next nine tokens."""

    def forced(self) -> Sequence[int]:
        return [3, 1, 4, 1, 5, 9, 2, 6, 5]


class Talk:
    """One request to a drafter, whose proposals are checked."""

    def __init__(self, drafter: AnyDrafter, rng: np.random.Generator, text: Sequence[int]) -> None:
        self._rng = rng
        self._name = drafter.name
        self._sampling = SETTINGS[rng.integers(len(SETTINGS))]
        self._noise, self._mask = Noise(int(rng.integers(99))), ForcingMask(V)
        self.text, self._n_prompt = list(text), len(text)
        self._tree = DraftTree()
        self._target = ToySession(V, model=LayeredToy(V))
        self._drafting: Drafting | ModelDrafting = drafter.begin(
            DraftPrompt(list(text), hidden_of(drafter, text), self._target, prediction=PREDICTION)
        )
        self._drafter = drafter
        if self._name == "mtp":  # which the pass that gives the first token tells what follows
            self.observe()

    def propose(self, budget: Budget) -> DraftTree:
        context = self._context()
        self._feed_target()
        found = self._drafting.propose(context, budget)
        self._tree = tree = found if isinstance(found, DraftTree) else run_passes(found)
        assert context.tokens == self.text
        assert list(self._target.tokens) == self.text[:-1]
        check_proposal(tree, budget, self._name)
        return tree

    def observe(self) -> None:
        """Emits what partly is the latest proposal, at least one token."""
        truth = self._rng.integers(0, V, 3).tolist()
        if len(self._tree) and self._rng.random() < 0.7:
            leaf = int(self._rng.integers(len(self._tree)))
            truth = [self._tree.nodes[i].token for i in self._tree.path(leaf)] + truth[:1]
        rows = [
            [(int(token), 0.3) for token in self._rng.permutation(V)[:3]]
            for _ in range(len(self._tree) + 1)
        ]
        context, outcome = self._context(), outcome_of(self._tree, truth, rows)
        read = [self.text[-1], *(node.token for node in self._tree.nodes)]
        outcome = replace(outcome, hidden=hidden_of(self._drafter, read), mtp=self._mtp(len(read)))
        if self._name == "mtp":  # whatever came was the likeliest of its row
            outcome.stats.argmax[:] = outcome.emitted[-1]
        self._drafting.observe(context, outcome)
        assert context.tokens == self.text
        self.text += outcome.emitted
        self._tree = DraftTree()

    def end(self, n_more: int = 0) -> None:
        """Ends with ``n_more`` tokens than seen; the prompt stays."""
        more = self._rng.integers(0, V, max(0, n_more)).tolist()
        text = [*self.text, *more][: max(self._n_prompt, len(self.text) + n_more)]
        self._drafting.end(text)

    def _mtp(self, n_rows: int) -> MtpRows:
        """Returns what heads might say of rows."""
        rows = [[self._rng.permutation(V)[:N_TOP] for _ in range(N_LIGHTS)] for _ in range(n_rows)]
        shares = np.sort(self._rng.dirichlet(np.ones(V), (n_rows, N_LIGHTS)))[..., ::-1]
        return MtpRows(np.array(rows), np.log(shares[..., :N_TOP]).astype(np.float32))

    def _feed_target(self) -> None:
        """Leaves the target as it is before a round: with all of the text but the anchor."""
        if before := self.text[:-1]:
            run_passes(feed(self._target, before))
        else:
            self._target.truncate(0)

    def _context(self) -> DraftContext:
        tokens = list(self.text)
        return DraftContext(tokens, self._n_prompt, self._sampling, self._noise, self._mask)


def check_proposal(tree: DraftTree, budget: Budget, name: str) -> None:
    """Asserts what any proposal has to be."""
    assert len(tree) <= budget.n_nodes
    for i, node in enumerate(tree.nodes):
        assert ROOT <= node.parent < i
        assert node.depth <= budget.depth
        assert 0 <= node.token < V
        assert 0 < node.probability <= 1
        assert node.origin == name
    assert all(value >= budget.min_value for value in tree.values())
    assert len({(node.token, node.parent) for node in tree.nodes}) == len(tree)


def hidden_of(drafter: AnyDrafter, tokens: Sequence[int]) -> dict[int, np.ndarray]:
    """Returns what a target model would say it made of ``tokens``."""
    states = np.array(tokens, np.float32)[:, None] + np.arange(1, HEAD_WIDTH + 1, dtype=np.float32)
    return dict.fromkeys(drafter.hidden_layers, states)


def random_text(rng: np.random.Generator) -> list[int]:
    found: list[int] = rng.integers(0, V // 2, rng.integers(1, 12)).tolist()
    return found


@pytest.mark.parametrize("name", drafter_names())
def test_a_method_states_itself(name: str, tmp_path: Path) -> None:
    method = find_drafter(name)
    assert method.summary.strip() == method.summary != ""
    drafter = Maker(name, tmp_path)()
    assert drafter.name == name
    assert all(isinstance(layer, int) for layer in drafter.hidden_layers)
    drafting = drafter.begin(DraftPrompt([1, 2], target=ToySession(V, model=LayeredToy(V))))
    assert isinstance(drafting, ModelDrafting) == (not method.is_free)
    drafting.end([1, 2])
    drafter.close()


@pytest.mark.parametrize("seed", range(6))
def test_two_requests_at_once_over_random_texts(make: Maker, seed: int) -> None:
    rng, drafter, n_drafted = np.random.default_rng(seed), make(), 0
    talks = [Talk(drafter, rng, random_text(rng)) for _ in range(2)]
    for _ in range(60):
        i = int(rng.integers(2))
        action = rng.choice(["round", "propose", "observe", "end"], p=[0.6, 0.15, 0.15, 0.1])
        if action in ("round", "propose"):
            n_drafted += len(talks[i].propose(BUDGETS[rng.integers(len(BUDGETS))]))
        if action in ("round", "observe"):
            talks[i].observe()
        if action == "end":
            talks[i].end(int(rng.integers(-4, 3)))
            goes_on = rng.random() < 0.5
            text = [*talks[i].text, 3] if goes_on else random_text(rng)
            talks[i] = Talk(drafter, rng, text)
    for i in rng.permutation(2):
        talks[i].end()
    assert n_drafted > 20, "next to nothing was drafted, so little was tested"
    make.check_nothing_is_lent()
    drafter.close()


@pytest.mark.parametrize("n_calls", [0, 1, 2, 3])
def test_it_may_end_in_any_state(make: Maker, n_calls: int) -> None:
    drafter, rng = make(), np.random.default_rng(n_calls)
    text = [1, 2, 3, 1, 2, 3, 1, 2]
    for calls in itertools.product(["propose", "observe"], repeat=n_calls):
        for n_more in (-99, -1, 0, 2):
            talk = Talk(drafter, rng, text)
            for call in calls:
                talk.observe() if call == "observe" else talk.propose(BUDGETS[0])
            talk.end(n_more)
            make.check_nothing_is_lent()
    talk = Talk(drafter, rng, text)
    assert len(talk.propose(Budget(7, 5))) > 0
    talk.end()
    drafter.close()


def test_who_else_asks_changes_no_proposal(make: Maker) -> None:
    """As long as nothing is learned of what was proposed; where both begin, both teach."""
    make.is_store_growing = False
    texts = [1, 2, 3, 4, 5, 1, 2, 3], [6, 6, 3, 4, 6, 6, 2, 3, 4]
    alone = []
    for i in (0, 1):
        drafter = make()
        talks = [Talk(drafter, np.random.default_rng(7), text) for text in texts]
        alone.append([talks[i].propose(budget).nodes for budget in BUDGETS])
        talks[1 - i].end()
        talks[i].end()
        drafter.close()
    drafter = make()
    talks = [Talk(drafter, np.random.default_rng(7), text) for text in texts]
    together = [[talk.propose(budget).nodes for talk in talks] for budget in BUDGETS]
    assert [list(proposals) for proposals in zip(*together, strict=True)] == alone
    assert any(alone[0])
    assert any(alone[1])
    talks[0].end()
    assert talks[1].propose(BUDGETS[0]).nodes == alone[1][0]
    talks[1].end()
    make.check_nothing_is_lent()


@pytest.mark.parametrize("name", drafter_names())
def test_what_a_method_needs_is_asked_for(name: str) -> None:
    methods, need = Methods(MethodParts(context=64)), find_drafter(name).need
    if need is None:
        assert methods.strategy(name).name == name
        return
    for method in (name, f"lookup+{name}"):
        with pytest.raises(ConfigError) as refused:
            methods.strategy(method)
        assert str(refused.value) == f"method {name} needs {need.advice}"
    assert need.option.split()[0] in need.advice


def test_auto_does_with_what_is_there() -> None:
    assert Methods(MethodParts(context=64)).strategy(AUTO).name == AUTO
    assert {find_drafter(name).need for name in drafter_names()} == {None, *Need}


def test_hidden_states_that_are_missing_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PromptLookup, "hidden_layers", (1, 4))
    expected = "method lookup needs the hidden states of layer 4.*--hidden-layers 1,4"
    with pytest.raises(ConfigError, match=expected):
        Methods(MethodParts(context=64, hidden_layers=(1,))).strategy("trigram+lookup")
    found = Methods(MethodParts(context=64, hidden_layers=(1, 2, 4))).strategy("trigram+lookup")
    assert found.hidden_layers == (1, 4)
