"""Sampled outputs follow the model's own distribution: their first two tokens over 20,000 seeds.

Each verifier judges what a real draft model proposes, in the rounds that decoding uses; only the
passes of both models are remembered from seed to seed. Counts are held against softmax in
float64 of logits from plain passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import edgedec
from edgedec import EngineOptions
from edgedec.export.config import DraftModelConfig, ExportConfig
from edgedec.export.pipeline import export
from edgedec.kernels import library
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.plain import Plain
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.decoding.verifiers import find_verifier
from edgedec.runtime.decoding.verifiers.typical import Typical
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.drafting.drafter import Budget
from edgedec.runtime.drafting.drafters.draft.draft_model import DraftModelDrafter
from edgedec.runtime.drafting.drafters.recycling import TokenRecycling

from ..runtime.conftest import OnePool
from .chi_square import MIN_EXPECTED, fit
from .conftest import Note
from .first_tokens import FirstTwoLaw, draw
from .memo_session import MemoSession

pytestmark = pytest.mark.long

N_OUTPUTS = 20_000
N_COMPARED = 500
PROMPT = "The opposite of hot is"
MIN_P = 1e-3
WRONG_P = 1e-9
CONFIG = GenerationConfig(
    max_new_tokens=3, ignore_eos=True, sampling=SamplingConfig(temperature=1.0)
)
BUDGET = Budget(n_nodes=4, depth=2, n_step_nodes=2)
HEAD_SIZE = 4096

CASES = ("shared-gumbel", "deterministic")


@dataclass
class Models:
    """The target model, twice: remembered, and for plain passes; and the draft model."""

    target: MemoSession
    draft: DraftRole
    prompt: list[int]
    distribution: FirstTwoLaw
    sharper_law: FirstTwoLaw


@pytest.fixture(scope="module")
def models(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """SmolLM2 with itself in 4 bits as the draft model, whose head knows few tokens."""
    if not library.has_library():
        pytest.skip("the compiled kernels are missing")
    source, bundle = str(smollm2_gguf), tmp_path_factory.mktemp("distribution") / "pair.edgedec"
    draft = DraftModelConfig(source=source, quantization="int4", head_size=HEAD_SIZE)
    export(ExportConfig(source=source, destination=bundle, draft=draft))
    with edgedec.load(bundle, EngineOptions(context=64, prefix_cache_mb=0)) as engine:
        prompt, computing = engine.encode(PROMPT), engine.new_sequence()
        distribution = FirstTwoLaw.of(computing, prompt, MIN_EXPECTED / N_OUTPUTS)
        sharper = distribution.at(computing, prompt, 0.9)
        assert engine.draft is not None
        opened = engine.draft.open()
        drafting = MemoSession(opened.take(prompt), prompt[:-1])
        yield Models(
            target=MemoSession(computing, prompt[:-1]),
            draft=DraftRole(OnePool(drafting), opened.token_map, opened.target_vocab_size),
            prompt=prompt,
            distribution=distribution,
            sharper_law=sharper,
        )
        opened.close()


def planner(models: Models) -> FixedPlanner:
    """Returns one with the draft model and one that guesses."""
    return FixedPlanner([TokenRecycling()], BUDGET, model=DraftModelDrafter(models.draft))


@pytest.mark.parametrize("name", CASES)
def test_law_of_the_first_two_tokens(models: Models, name: str, note: Note) -> None:
    strategy = Speculative(planner(models), find_verifier(name))
    drawn = draw(models.target, strategy, models.prompt, CONFIG, models.distribution, N_OUTPUTS)
    found, wrong = (
        fit(drawn.counts, distribution.probs)
        for distribution in (models.distribution, models.sharper_law)
    )
    accepted = drawn.n_accepted
    note(
        f"{N_OUTPUTS} seeds, {found}; at temperature 0.9 it would be p = {wrong.p_value:.1g}; "
        f"accepted {accepted[0]} first and {accepted[1]} second tokens of {drawn.n_evaluated} "
        "evaluated ones"
    )
    assert min(accepted) > N_OUTPUTS / 20
    assert found.n_cells > 50
    assert found.p_value > MIN_P
    assert wrong.p_value < WRONG_P
    assert models.target.n_checked > 0
    if find_verifier(name).is_exact:
        plain = draw(models.target, Plain(), models.prompt, CONFIG, models.distribution, N_COMPARED)
        assert drawn.pairs[:N_COMPARED] == plain.pairs


def test_another_law_is_seen(models: Models, note: Note) -> None:
    """Typical acceptance, which is approximate, does not pass for the model's distribution."""
    strategy = Speculative(planner(models), Typical())
    drawn = draw(
        models.target, strategy, models.prompt, CONFIG, models.distribution, N_OUTPUTS // 10
    )
    found = fit(drawn.counts, models.distribution.probs)
    note(f"typical acceptance: {found}")
    assert found.p_value < WRONG_P
