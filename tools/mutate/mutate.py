"""Which small changes of a program its tests let pass: a plugin for pytest.

    export PYTHONPATH=tools/mutate OMP_NUM_THREADS=1
    python -m pytest -q -p mutate --mutate reach --of runtime/decoding tests/runtime
    python -m pytest -q -p mutate --mutate run --of runtime/decoding tests/runtime

The first run notes which tests reach which line (`pip install coverage`; as long as the tests take
twice), and may be cut in several, each of some tests. The second changes one place at a time, each
in a fork of a session that has collected its tests, and runs those that reach it, quickest first,
until one fails. Results, a JSON object a line, are kept in --keep: the same command goes on where
one that was stopped ended, and `--shard 0/2` beside `--shard 1/2` uses two cores. With `--sample
100`, both runs draw the same 100 places of all that `--of` names. Not everything that survives is a
fault of the tests: some changes change nothing, others only what is slower.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from places import drawn, places_of
from reach import Reach
from survivors import Survivors


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("mutate")
    group.addoption("--mutate", choices=("reach", "run"), required=True)
    group.addoption("--of", action="append", required=True, help="folder or file to change")
    group.addoption("--sample", type=int, help="change this many places, drawn at random")
    group.addoption("--seed", type=int, default=0, help="of the sample")
    group.addoption("--keep", default="build/mutate", help="folder of what was found")
    group.addoption("--shard", default="0/1", help="I/N: every Nth place, from the Ith")
    group.addoption("--slowest", type=float, default=3.0, help="seconds of a test that is run")
    group.addoption("--seconds", type=float, default=20.0, help="of all tests of a place")
    group.addoption(
        "--patience",
        type=float,
        default=20.0,
        help="seconds that tests may take beyond four times their processor time",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the part of a session that was asked for."""
    keep = Path(config.getoption("keep"))
    keep.mkdir(parents=True, exist_ok=True)
    parts = [Path(part).resolve() for part in config.getoption("of")]
    files = sorted(f for part in parts for f in (part.rglob("*.py") if part.is_dir() else [part]))
    jobs = places_of(files)
    if (n := config.getoption("sample")) is not None:
        jobs = drawn(jobs, n, config.getoption("seed"))
    kind = Reach if config.getoption("mutate") == "reach" else Survivors
    config.pluginmanager.register(kind(config, jobs, keep))
