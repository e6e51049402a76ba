"""Compiled drafters against those in Python: every bit of every tree, and what each learned."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.kernels import drafting as door
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.drafting.compiled import CompiledDrafter, CompiledTeam
from edgedec.runtime.drafting.draft_tree import DraftTree
from edgedec.runtime.drafting.drafter import Budget, Drafter, DraftPrompt, RoundOutcome
from edgedec.runtime.drafting.drafters.lookup import PromptLookup
from edgedec.runtime.drafting.drafters.recycling import TokenRecycling
from edgedec.runtime.drafting.drafters.trigram import Trigrams
from edgedec.runtime.sequences.row_stats import RowStats

from .drafters.rounds import context_of, outcome_of
from .reference import lookup, recycling, trigram
from .reference.rounds import Team

README = Path(__file__).parents[3] / "README.md"
TABLES = [
    {1: 3.0, 2: 3.1, 3: 3.2, 4: 3.35, 6: 3.8, 8: 4.1, 16: 6.0},
    {1: 10.0, 2: 10.5, 4: 11.0, 8: 14.0, 16: 23.0},
    {1: 10.0, 16: 160.0},
    {1: 4.0, 2: 4.0},
    {2: 5.0},
]
PAIRS: dict[str, Callable[[], tuple[CompiledDrafter, Any]]] = {
    "lookup": lambda: (PromptLookup(), lookup.PromptLookup()),
    "recycling": lambda: (TokenRecycling(), recycling.TokenRecycling()),
    "trigram": lambda: (Trigrams(40), trigram.Trigrams(40)),
}


class Chance:
    """Texts, and what a model might make of them."""

    def __init__(self, seed: int, vocabulary: int) -> None:
        self._random = random.Random(seed)
        self._rng = np.random.default_rng(seed)
        self.vocabulary = vocabulary
        self.words = [hash_of(word) % 2**40 for word in re.findall(r"\w+|\W", README.read_text())]

    def text(self) -> list[int]:
        """Returns a prompt: random tokens, a loop, or words."""
        n = self._random.randint(1, 60)
        kind = self._random.randrange(3)
        if kind == 0:
            return [self._random.randrange(self.vocabulary) for _ in range(n)]
        if kind == 1:
            loop = [self._random.randrange(self.vocabulary) for _ in range(1 + n % 7)]
            return list(itertools.islice(itertools.cycle(loop), n))
        start = self._random.randrange(len(self.words) - 200)
        return self.words[start : start + n]

    def budget(self) -> Budget:
        return Budget(
            self._random.choice([0, 1, 3, 7, 15, 20, 100]),
            self._random.choice([0, 1, 2, 5, 15, 40]),
            self._random.choice([0.0, 0.02, 0.1, 0.4]),
        )

    def costs(self) -> CostTable:
        return CostTable(dict(self._random.choice(TABLES)))

    def verified(self, tree: DraftTree) -> DraftTree:
        """Returns ``tree``, or a part of it, as stop tokens may leave."""
        if not len(tree) or self._random.random() < 0.8:
            return tree
        kept: list[int] = []
        for i, node in enumerate(tree.nodes):
            if (node.parent < 0 or node.parent in kept) and self._random.random() < 0.8:
                kept.append(i)
        return tree.subtree(kept)

    def outcome(self, tree: DraftTree, text: Sequence[int]) -> RoundOutcome:
        """Returns an outcome that goes down ``tree`` for a while."""
        path: list[int] = []
        while children := tree.children(path[-1] if path else -1):
            if self._random.random() < 0.3:
                break
            path.append(self._random.choice(children))
        end = path[-1] if path else -1
        at = self._random.randrange(len(text))
        last = self._random.choice([text[at], self._random.randrange(self.vocabulary)])
        while tree.child(end, last) is not None:  # it would have been accepted
            last = self._random.randrange(2 * self.vocabulary)
        emitted = (*(tree.nodes[i].token for i in path), last)
        n_rows = self._random.choice([len(tree) + 1, len(tree) + 1, 1, max(1, len(tree))])
        logits = 3 * self._rng.standard_normal((n_rows, self.vocabulary)).astype(np.float32)
        return RoundOutcome(tree, tuple(path), emitted, RowStats.of(logits))


def hash_of(word: str) -> int:
    return int.from_bytes(word.encode()[:5].ljust(5), "little")


def check_known(compiled: CompiledDrafter, reference: Any) -> None:
    """Asserts that both learned the same."""
    if isinstance(compiled, Trigrams):
        assert len(compiled) == len(reference) <= 40
        for pair in reference._counts:
            assert list(compiled.counts(*pair).items()) == list(reference.counts(*pair).items())
    elif isinstance(compiled, TokenRecycling):
        for token in reference._table.keys() | reference._seeds.keys():
            assert compiled.successors(token) == reference.successors(token)
    else:
        assert len(compiled) == len(reference._idle) <= 4


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", PAIRS)
def test_one_drafter_proposes_what_it_proposes_in_python(name: str, seed: int) -> None:
    chance = Chance(seed, 5 + 40 * (seed % 2))
    compiled, reference = PAIRS[name]()
    texts = [chance.text() for _ in range(3)]
    for _ in range(12):
        text = list(texts[chance._random.randrange(3)])
        both = [drafter.begin(DraftPrompt(list(text))) for drafter in (compiled, reference)]
        for _ in range(chance._random.randint(0, 12)):
            context, budget = context_of(text), chance.budget()
            trees = [drafting.propose(context, budget) for drafting in both]
            assert trees[0].nodes == trees[1].nodes
            outcome = chance.outcome(chance.verified(trees[0]), text)
            for drafting in both:
                drafting.observe(context, outcome)
            text += outcome.emitted
        text = text[: max(1, len(text) - chance._random.choice([0, 0, 1, 5]))]
        for drafting in both:
            drafting.end(text)
        texts[chance._random.randrange(3)] = text
        check_known(compiled, reference)


@pytest.mark.parametrize("names", [*itertools.combinations(PAIRS, 2), tuple(PAIRS)], ids="+".join)
@pytest.mark.parametrize("seed", range(4))
def test_a_team_proposes_as_it_does_in_python(names: tuple[str, ...], seed: int) -> None:
    """Several requests at a time, which share what is learned."""
    chance = Chance(seed, 6 + 50 * (seed % 2))
    drafters = [PAIRS[name]() for name in names]
    teams = CompiledTeam([one for one, _ in drafters]), Team([one for _, one in drafters])
    n_proposed = 0
    for _ in range(6):
        texts = [chance.text() for _ in range(3)]
        talks = [[team.begin(DraftPrompt(list(text))) for team in teams] for text in texts]
        for _ in range(60):
            at = chance._random.randrange(3)
            text, (compiled, reference) = texts[at], talks[at]
            context, budget = context_of(text), chance.budget()
            tree = compiled.propose(context, budget)
            assert tree.nodes == reference.propose(context, budget).nodes
            n_proposed += len(tree)
            n = chance._random.randint(0, len(tree))
            outcome = chance.outcome(chance.verified(tree.beginning(n)), text)
            compiled.observe(context, outcome)
            reference.observe(context, outcome)
            texts[at] = [*text, *outcome.emitted]
        for text, (compiled, reference) in zip(texts, talks, strict=True):
            compiled.end(text)
            reference.end(text)
        for one, other in drafters:
            check_known(one, other)
    assert n_proposed > 100, "next to nothing was proposed, so little was tested"


def test_long_texts_of_one_token_and_of_many() -> None:
    for text in ([7] * 3000, list(range(3000)) * 2):
        one, other = PAIRS["lookup"]()
        trees = [
            drafter.begin(DraftPrompt(text)).propose(context_of(text), Budget(15, 15))
            for drafter in (one, other)
        ]
        assert trees[0].nodes == trees[1].nodes
        assert len(trees[0]) == 15


def test_requests_go_on_when_their_drafter_is_closed_or_gone() -> None:
    for name in PAIRS:
        drafter, _ = PAIRS[name]()
        text = [1, 2, 3, 1, 2, 3, 1]
        drafting = drafter.begin(DraftPrompt(text))
        drafter.close()
        assert len(drafter) == 0
        del drafter
        drafting.propose(context_of(text), Budget(5, 5))
        drafting.observe(context_of(text), outcome_of(DraftTree(), [2]))
        drafting.end([*text, 2])


@pytest.mark.parametrize("name", PAIRS)
def test_odd_tokens_numbers_and_texts_are_taken(name: str) -> None:
    """Ids from nowhere, statistics that are no numbers, a text that became shorter."""
    drafter, reference = PAIRS[name]()
    text = [-(2**63), 2**63 - 1, 0, -1, -(2**63), 2**63 - 1]
    both: list[Any] = [one.begin(DraftPrompt(text)) for one in (drafter, reference)]
    odd = np.full((1, 8), np.nan, np.float32)
    odd[0, :3] = np.inf, -np.inf, 0.0
    stats = RowStats.of(odd)
    for kept in (6, 3, 5, 1):
        context = context_of(text[:kept])
        trees = [one.propose(context, Budget(9, 9)) for one in both]
        assert trees[0].nodes == trees[1].nodes
        for one in both:
            one.observe(context, RoundOutcome(DraftTree(), (), (7,), stats))
    for one in both:
        one.end(text[:2])


def test_what_is_no_prompt() -> None:
    drafter: Drafter
    for drafter in (PromptLookup(), TokenRecycling(), Trigrams()):
        with pytest.raises(ValueError, match="prompt without tokens"):
            drafter.begin(DraftPrompt([]))
        with pytest.raises(OverflowError):
            drafter.begin(DraftPrompt([2**63]))
    with pytest.raises(RuntimeError, match="no drafter oracle"):
        door.Drafter("oracle")


def test_a_larger_proposal_than_any_before_has_room() -> None:
    text = list(range(300)) * 2
    drafting = PromptLookup().begin(DraftPrompt(text))
    assert len(drafting.propose(context_of(text), Budget(200, 250))) == 200
    assert len(drafting.propose(context_of(text), Budget(3, 3))) == 3
