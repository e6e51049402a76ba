"""Methods per request: what is drafted how, from where, and counters that add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig, SamplingConfig, SpeculationConfig
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.result import GenerationResult

from ..conftest import ToyModel

MakeEngine = Callable[..., Engine]
HASH = "ab" * 32
SAMPLED = SamplingConfig(temperature=0.9)
METHODS = ["plain", "lookup", "recycling+trigram", "store", "lookup+store", "auto"]
N_NEW = 60


@pytest.fixture
def store(tmp_path: Path) -> NgramStore:
    return NgramStore.open(tmp_path / "store", HASH)


@pytest.fixture
def engine(make_engine: MakeEngine, store: NgramStore, cheap_rows: None) -> Engine:
    return make_engine(store=store)


def ask(engine: Engine, method: str, **fields: object) -> GenerationResult:
    config = GenerationConfig(max_new_tokens=N_NEW, method=method, **fields)  # type: ignore[arg-type]
    return engine.generate("The quick brown fox", config)


def check_counts(result: GenerationResult) -> None:
    """Asserts what is promised of `DecodeStats`."""
    stats = result.stats
    assert result.n_new_tokens == 1 + stats.n_accepted + stats.n_passes - stats.n_discarded
    assert stats.n_rounds == stats.n_correction + stats.n_bonus <= stats.n_passes
    for parts in (list(stats.by_drafter().values()), stats.by_depth()):
        for name in ("n_proposed", "n_evaluated", "n_accepted"):
            assert sum(getattr(part, name) for part in parts) == getattr(stats, name)
        assert all(0 <= p.n_accepted <= p.n_evaluated <= p.n_proposed for p in parts)
    origins = Counter(result.origins)
    assert sum(origins.values()) == result.n_new_tokens
    n_kept = 0
    for name, counts in stats.by_drafter().items():
        assert origins[name] <= counts.n_accepted
        n_kept += origins[name]
    assert origins["target"] == result.n_new_tokens - n_kept
    assert stats.n_accepted - n_kept <= stats.n_discarded


@pytest.mark.parametrize("sampling", [SamplingConfig(), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("limits", [{}, {"draft_len": 1}, {"draft_len": 20, "depth": 3}], ids=str)
def test_one_engine_serves_every_method_with_counts_that_add_up(
    engine: Engine, sampling: SamplingConfig, limits: dict[str, int]
) -> None:
    plain = ask(engine, "plain", sampling=sampling, seed=5)
    assert plain.stats.n_proposed == 0
    speculation = SpeculationConfig(**limits)
    for method in METHODS * 2:
        result = ask(engine, method, sampling=sampling, seed=5, speculation=speculation)
        assert result.token_ids == plain.token_ids
        assert result.method == method
        check_counts(result)
    assert result.stats.n_accepted > 0


@pytest.mark.parametrize("method", ["store", "lookup+store", "auto"])
def test_limits_of_a_request(engine: Engine, method: str) -> None:
    for _ in range(2):
        ask(engine, "store")
    for limits in ({"depth": 3}, {"draft_len": 2}, {"draft_len": 4, "depth": 1}):
        stats = ask(engine, method, speculation=SpeculationConfig(**limits)).stats
        depth = min(limits.get("depth", 63), limits.get("draft_len", 63))
        assert 0 < len(stats.by_depth()) <= depth
        assert stats.n_proposed <= limits.get("draft_len", 63) * stats.n_rounds


def test_a_request_may_ask_for_longer_drafts(engine: Engine) -> None:
    ask(engine, "store")
    usual = ask(engine, "store", speculation=SpeculationConfig(draft_len=7)).stats
    more = ask(engine, "store", speculation=SpeculationConfig(draft_len=15)).stats
    assert len(usual.by_depth()) == 7
    assert len(more.by_depth()) > 10
    assert more.n_passes < usual.n_passes


def test_a_store_grows_with_the_methods_that_draft_from_it(
    engine: Engine, store: NgramStore
) -> None:
    ask(engine, "lookup")
    assert store.n_tokens == 0
    first = ask(engine, "store")
    assert store.n_tokens == first.n_prompt_tokens + N_NEW + 1
    assert "store" not in first.stats.drafted
    again = ask(engine, "auto")
    assert again.stats.by_drafter()["store"].n_accepted > 0


def test_a_request_may_leave_the_store_alone(engine: Engine, store: NgramStore) -> None:
    ask(engine, "store")
    n_tokens = store.n_tokens
    result = ask(engine, "lookup+recycling", seed=1)
    assert "store" not in result.stats.drafted
    assert store.n_tokens == n_tokens


@pytest.mark.parametrize(
    ("method", "verifier", "text"),
    [
        ("store", None, r"method store needs an n-gram store: name its file"),
        ("lookup+store", None, r"method store needs an n-gram store"),
        ("draft", None, r"method draft needs a draft model"),
        ("none", None, r"unknown method 'none', expected plain, auto, or some of .* joined by \+"),
        ("lookup", "best", r"unknown verifier 'best', expected one of"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_runs(
    make_engine: MakeEngine, method: str, verifier: str | None, text: str
) -> None:
    engine = make_engine()
    assert isinstance(engine.model, ToyModel)
    with pytest.raises(ConfigError, match=text):
        engine.stream("fox", GenerationConfig(method=method, verifier=verifier))
    assert engine.model.n_passes == 0


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"draft_len": 0}, "draft_len is 0, expected a whole number of at least 1; method plain"),
        ({"draft_len": 64}, "draft_len is 64, expected at most 63"),
        ({"depth": True}, "depth is True, expected a whole number"),
        ({"depth": 10**9}, "depth is 1000000000, expected at most 63"),
        ({"n_nodes": 3}, "unknown SpeculationConfig key 'n_nodes'; known: depth, draft_len"),
    ],
)
def test_settings_that_make_no_sense(fields: dict[str, int], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        GenerationConfig.from_dict({"speculation": fields})


def test_settings_from_a_document() -> None:
    config = GenerationConfig.from_dict({"speculation": {"draft_len": 4}})
    assert config.speculation == SpeculationConfig(draft_len=4)
    with pytest.raises(ConfigError, match="speculation is 4, expected a SpeculationConfig"):
        GenerationConfig(speculation=4)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["lookup", "recycling+trigram"])
def test_rows_that_do_not_pay_are_drafted_only_if_they_are_asked_for(
    engine: Engine, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row costs as much as a pass here, so no draft can pay."""
    monkeypatch.setattr(CostTable, "unknown", lambda: CostTable({1: 100.0, 16: 1600.0}))
    weighed = ask(engine, method)
    fixed = ask(engine, method, speculation=SpeculationConfig(draft_len=5))
    assert weighed.stats.n_proposed == 0 < fixed.stats.n_proposed
    assert weighed.token_ids == fixed.token_ids == ask(engine, "plain").token_ids
