"""Which cores drafting and verification get, and when they get none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.drafting.core_split import CoreSplit
from edgedec.runtime.methods.draft_source import DraftSource
from edgedec.runtime.opening import split_cores as splitting
from edgedec.runtime.opening.split_cores import at_home, split_cores
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.system.processors import one_processor_per_core, physical_cores


def entry(kind: str, provider: str = "CPUExecutionProvider") -> Any:
    contract = SimpleNamespace(kv=SimpleNamespace(kind=kind), providers=(provider,))
    return SimpleNamespace(contract=contract)


FUSED, PORTABLE = entry("panels"), entry("rows")
ON_GPU = entry("rows", "CUDAExecutionProvider")


def split(
    mode: str = "auto", threads: int = 64, target: Any = FUSED, draft: Any = FUSED, **fields: Any
) -> CoreSplit:
    source: Any = None if draft is None else SimpleNamespace(entry=draft)
    return split_cores(mode, Affinity(**fields), threads, target, source)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns what makes the machine one with the given processors, one for each core."""
    return lambda *found: monkeypatch.setattr(
        splitting, "one_processor_per_core", lambda: list(found)
    )


@pytest.mark.parametrize(
    ("n", "n_draft"), [(2, None), (3, None), (4, 1), (7, 1), (8, 2), (16, 4)], ids=str
)
def test_auto_wants_four_cores(cores: Any, n: int, n_draft: int | None) -> None:
    cores(*range(0, 2 * n, 2))
    found = split()
    assert found.is_on == (n_draft is not None)
    assert found.is_measured == found.is_on
    if n_draft is None:
        assert found.reason == f"{n} cores to divide, and fewer than 4 do not pay"
        return
    parts = found.target.processors, found.draft.processors
    assert sorted(sum(parts, ())) == list(range(0, 2 * n, 2))
    assert len(parts[1]) == n_draft


def test_on_takes_two_and_is_not_measured(cores: Any) -> None:
    cores(4, 6)
    found = split("on")
    assert (found.target.processors, found.draft.processors) == ((4,), (6,))
    assert found.is_on
    assert not found.is_measured


def test_threads_and_affinity_bound_it(cores: Any) -> None:
    cores(*range(16))
    assert len(split(threads=5).target.processors) == 4
    assert split(threads=5).draft.processors == (4,)
    assert not split(threads=3).is_on
    pinned = split(processors=(9, 2, 5, 7))
    assert (pinned.target.processors, pinned.draft.processors) == ((9, 2, 5), (7,))


def test_a_draft_model_that_cannot_move_stays_on_its_share(cores: Any) -> None:
    cores(*range(8))
    found = split(draft=PORTABLE)
    assert found.is_on
    source: Any = DraftSource(Path(), PORTABLE, None, 0, 8, 0, "")
    assert at_home(source, found).affinity.processors == found.draft.processors == (6, 7)
    assert at_home(source, found).threads == 2
    movable = replace(source, entry=FUSED)
    assert at_home(movable, found) is movable


@pytest.mark.parametrize("fields", [{"draft": ON_GPU}, {"target": ON_GPU}])
def test_nothing_is_divided_between_two_devices(cores: Any, fields: dict[str, Any]) -> None:
    cores(0)
    found = split(**fields)
    assert found.is_on
    assert found.is_measured
    assert not found.draft.processors


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"draft": None}, "there is no draft model"),
        ({"threads": 1}, "there is only one core to divide"),
        ({"target": PORTABLE}, "the target model has a KV cache of the kind rows, and only models"),
    ],
)
def test_what_stands_in_its_way(cores: Any, fields: dict[str, Any], reason: str) -> None:
    cores(*range(8))
    with pytest.raises(ConfigError, match=f"^overlap is on, but .*{reason}"):
        split("on", **fields)
    assert reason in split("auto", **fields).reason
    assert split("off", **fields).reason == "not asked for"


@pytest.mark.parametrize("mode", ["", "ON", "yes", None, True])
def test_unknown_modes(mode: Any) -> None:
    with pytest.raises(ConfigError, match="expected auto, on, off"):
        split(mode)


def test_one_processor_of_each_core() -> None:
    assert len(set(one_processor_per_core())) == physical_cores()


needs_two = pytest.mark.skipif(physical_cores() < 2, reason="one core cannot be divided")


@needs_two
@pytest.mark.e2e
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_plain_decodings(smollm2_bundle: Path, temperature: float) -> None:
    """SmolLM2 drafts for itself in a thread; whatever it had time for, the text is the same."""
    sampling = SamplingConfig(temperature=temperature)
    made = {"max_new_tokens": 40, "sampling": sampling, "seed": 3, "ignore_eos": True}
    options = edgedec.EngineOptions(threads=2, context=256, draft=smollm2_bundle, overlap="on")
    with edgedec.load(smollm2_bundle, options) as engine:
        plain, draft, both, again = (
            engine.generate("Three rivers:", GenerationConfig(method=method, **made))  # type: ignore[arg-type]
            for method in ("plain", "draft", "draft+lookup", "draft")
        )
    for result in (draft, both, again):
        assert result.token_ids == plain.token_ids
        assert result.stats.n_early >= result.stats.n_early_used >= 0
        assert not result.stats.failed_drafters
    assert draft.stats.n_early_used > 0
    assert draft.stats.n_accepted > 0


@needs_two
@pytest.mark.e2e
def test_a_session_that_moves_keeps_its_rows_and_its_logits(smollm2_bundle: Path) -> None:
    first, second = one_processor_per_core()[:2]
    options = edgedec.EngineOptions(threads=2, context=64, draft=False)
    with edgedec.load(smollm2_bundle, options) as engine:
        session = engine.new_sequence()
        text, rows = engine.encode("The three primary colours are red,"), []
        for cores in (None, Affinity((second,)), Affinity((second, first))):
            session.truncate(0)
            session.place(None)
            session.forward(TokenTree.chain(text), ())
            session.commit(range(len(text)))
            session.place(cores)
            for tokens in ((5, 6, 7), (8,), (5, 6, 7)):
                found = session.forward(TokenTree.chain(tokens), range(len(tokens)))
                rows.append(found.logits.copy())
    for i in range(3):
        np.testing.assert_array_equal(rows[i], rows[3 + i])
        np.testing.assert_array_equal(rows[i], rows[6 + i])
    session.place(Affinity((second,)))
    with pytest.raises(edgedec.SessionError, match="closed"):
        session.forward(TokenTree.chain((5,)), ())
