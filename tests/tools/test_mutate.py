"""Small changes of a program, and which of them its tests let pass."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

MUTATE = Path(__file__).parents[2] / "tools/mutate"
SOURCE = '''"""Of prices."""

LIMIT = 10
_FREE = 1


def total(prices, is_member):
    """Returns 1 for each."""
    if not prices:
        raise ValueError(f"got {len(prices) + 1}")
    found = sum(prices)
    if found > LIMIT and is_member:
        found -= _FREE
    return max(found, 0)


class Till:
    def __init__(self):
        self.sums = []

    def add(self, prices):
        self.sums.append(total(prices, False))
        return lambda: self.sums[-1]
'''
TESTS = """
from shop import Till, total


def test_total():
    assert total([4, 5], False) == 9
    assert total([20], True) == 19
    assert total([20], False) == 20


def test_till():
    assert Till().add([1, 2])() == 3
"""


@pytest.fixture(scope="module")
def places() -> Iterator[Any]:
    sys.path.insert(0, str(MUTATE))
    import places

    yield places
    sys.path.remove(str(MUTATE))


def test_places_are_those_of_functions_and_constants(places: Any) -> None:
    found = places.places(SOURCE)
    assert [(place.line, place.what, place.within) for place in found] == [
        (3, "10 -> 11", "=LIMIT"),
        (4, "1 -> 2", "=_FREE"),
        (9, "no Not", "total"),
        (12, "And", "total"),
        (12, "Gt", "total"),
        (13, "left out", "total"),
        (13, "Sub", "total"),
        (14, "max", "total"),
        (14, "0 -> 1", "total"),
        (19, "left out", "Till.__init__"),
        (22, "left out", "Till.add"),
        (22, "False -> True", "Till.add"),
        (23, "no USub", "Till.add"),
        (23, "1 -> 2", "Till.add"),
    ]


def test_a_mutant_differs_in_one_place(places: Any) -> None:
    whole = ast.unparse(ast.parse(SOURCE)).splitlines()
    for number in range(len(places.places(SOURCE))):
        changed = ast.unparse(places.mutant(SOURCE, number)).splitlines()
        assert len(changed) == len(whole)
        assert sum(a != b for a, b in zip(whole, changed, strict=True)) == 1


def test_a_sample_depends_on_its_seed_alone(places: Any, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SOURCE)
    jobs = places.places_of([tmp_path / "shop.py"])
    drawn = [places.drawn(jobs, 5, seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [len(sample) for sample in drawn] == [5, 5, 5]
    assert all(set(sample) <= set(jobs) for sample in drawn)
    assert places.drawn(jobs, 99, 0) == jobs


@pytest.mark.parametrize("n_sampled", [None, 5])
def test_what_tests_let_pass_is_found_and_found_once(tmp_path: Path, n_sampled: int | None) -> None:
    pytest.importorskip("coverage", reason="needs the dev extra")
    (tmp_path / "shop.py").write_text(SOURCE)
    (tmp_path / "test_shop.py").write_text(TESTS)
    options = ["-q", "-p", "mutate", "--of", "shop.py", "--keep", "kept"]
    options += [] if n_sampled is None else ["--sample", str(n_sampled)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(MUTATE), str(tmp_path)))}
    parts = ["test_shop.py::test_total", "test_shop.py::test_till"]
    for kind, tests in (("reach", parts[:1]), ("reach", parts[1:]), ("run", parts), ("run", parts)):
        command = [sys.executable, "-m", "pytest", *options, "--mutate", kind, *tests]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode in (0, 5), done.stdout + done.stderr  # 5: no tests were run
    records = [json.loads(line) for line in (tmp_path / "kept/survivors-0.jsonl").open()]
    assert {record["file"] for record in records} == {str(tmp_path / "shop.py")}
    outcomes = {(record["line"], record["what"]): record["outcome"] for record in records}
    assert len(outcomes) == len(records) == (n_sampled or 14)
    survived = {place for place, outcome in outcomes.items() if outcome == "survived"}
    # Nothing is sold for 10 or 11, nothing for less than two, and no member comes to the till.
    expected = {
        (3, "10 -> 11"),
        (12, "Gt"),
        (14, "0 -> 1"),
        (22, "False -> True"),
    }
    assert survived == expected & outcomes.keys()
    assert set(outcomes.values()) == {"survived", "killed"}
