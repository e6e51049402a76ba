"""`edgedec tune --skip`: the search against all sets there are, and the bundle it leaves."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedec.labs.tuning.skip import SkipState, named
from edgedec.labs.tuning.skip_search import SkipKey, StepCosts, budgets, search, speedup
from edgedec.models.manifest import read_manifest
from edgedec.runtime.drafting.skip_set import SkipSet

Cli = Callable[..., Any]
ROWS = (1.0, 1.02, 1.1, 1.2, 1.3)


@pytest.mark.parametrize(
    ("acceptance", "cost", "expected"),
    [
        (0.0, 0.5, 1 / 1.52),  # the token after the draft is all there is
        (1.0, 0.0, 5 / 1.3),
        (0.5, 0.25, max(1.5 / 1.27, 1.75 / 1.6, 1.875 / 1.95, 1.9375 / 2.3)),
    ],
)
def test_speedup_of_the_best_depth(acceptance: float, cost: float, expected: float) -> None:
    assert speedup(acceptance, cost, ROWS) == pytest.approx(expected)


def test_the_cost_of_a_pass_without_some_sub_layers() -> None:
    costs = StepCosts(attention=0.05, mlp=0.1, rows=ROWS)
    assert costs.of(()) == 1.0
    assert costs.of((2, 3, 5)) == pytest.approx(1 - 0.05 - 2 * 0.1)
    assert StepCosts(0.5, 0.5, ROWS).of((2, 3, 5)) == 0.01  # measured costs may sum up to more


def test_the_search_finds_the_best_of_all_sets() -> None:
    """A toy whose sub-layers hurt in pairs: what is best alone is not best together."""
    n_layers, costs = 6, StepCosts(attention=0.05, mlp=0.1, rows=ROWS)
    calls: list[tuple[SkipKey, bool]] = []

    def accept(off: SkipKey, is_final: bool) -> float:
        calls.append((off, is_final))
        harm = sum(0.02 * i for i in off)
        harm += sum(0.3 for a, b in itertools.combinations(off, 2) if b - a == 1)
        return max(0.0, 0.9 - harm)

    def worth(off: SkipKey) -> float:
        return speedup(accept(off, True), costs.of(off), costs.rows)

    found: dict[int, SkipKey] = {}
    for off in itertools.islice(search(n_layers, accept, costs, seed=1), 120):
        assert off == tuple(sorted(set(off)))
        assert 2 <= off[0] <= off[-1] < 2 * (n_layers - 1)
        assert len(off) not in found or worth(off) >= worth(found[len(off)])
        found[len(off)] = off
    assert sorted(found) == [n for n in budgets(n_layers) if n < 8]
    for n, off in found.items():
        best = max(itertools.combinations(range(2, 10), n), key=worth)
        assert worth(off) == pytest.approx(worth(best))
    assert {is_final for _, is_final in calls} == {True, False}


def test_equal_seeds_search_alike() -> None:
    costs = StepCosts(0.05, 0.1, ROWS)
    first, second = (
        list(itertools.islice(search(8, lambda off, _: 0.9 - 0.001 * sum(off), costs, 3), 20))
        for _ in range(2)
    )
    assert first == second


def test_what_was_found_is_read_back(tmp_path: Path) -> None:
    state = SkipState(tmp_path / "a" / "state.json", {"p": ([1, 2], [3])}, {"2,5/1": 0.5})
    state.save()
    fields = json.loads(state.path.read_text("utf-8"))
    assert fields == {"texts": {"p": [[1, 2], [3]]}, "known": {"2,5/1": 0.5}}
    assert named((6, 13)) == "a3 m6"


@pytest.fixture(scope="module")
def bundle(small_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tune") / "smollm2.edgedec"
    shutil.copytree(small_bundle, found, copy_function=shutil.copy)
    return found


@pytest.mark.slow
def test_sets_are_found_written_and_drafted_with(bundle: Path, cli: Cli, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "Count from one to ten."}, {"prompt": "Name three rivers."}]
    prompts.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    tune = ("tune", str(bundle), "--skip", "--prompts", str(prompts), "--minutes", "0.03")
    done = cli(*tune, "--max-new-tokens", "20", "--json")
    assert done.exit_code == 0, done.err
    found = done.json
    assert len(found["budgets"]) >= 1
    assert found["speedup"] == max(one["speedup"] for one in found["budgets"])
    assert all(0 < one["cost"] <= 1 for one in found["budgets"])
    assert found["evidence"]["n_texts"] >= 1
    manifest = read_manifest(bundle)
    skip_set = SkipSet.read(manifest.defaults, manifest.target.config)
    assert skip_set is not None
    assert list(skip_set.off) == found["off"]
    again = cli(*tune, "--max-new-tokens", "20", "--dry-run")
    assert "trials are known already" in again.err
    assert "tokens that hold" in again.out
    drafted = cli("run", str(bundle), "Name three rivers.", "-n", "8", "--method", "skip", "--json")
    plain = cli("run", str(bundle), "Name three rivers.", "-n", "8", "--method", "plain", "--json")
    assert drafted.json["text"] == plain.json["text"]


def test_skip_and_policy_exclude_each_other(bundle: Path, cli: Cli, tmp_path: Path) -> None:
    done = cli("tune", str(bundle), "--skip", "--policy", "ead", "--prompts", str(tmp_path))
    assert "--skip finds sub-layers and --policy thresholds: choose one" in done.error
