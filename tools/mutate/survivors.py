"""Runs the tests that reach a changed place, each time in a fork of the session."""

from __future__ import annotations

import ast
import contextlib
import gc
import json
import os
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence, Set
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from places import Job, Place, constants, mutant
from reach import NAME

Functions = dict[tuple[str, str], list[types.FunctionType]]

PASSED, FAILED, NOT_CHANGED, BROKEN = range(4)
OUTCOMES = {PASSED: "survived", FAILED: "killed", NOT_CHANGED: "not changed", BROKEN: "broken"}
NO_END = "no end"


class Survivors:
    """A test session in which nothing is run but what decides about changed places."""

    def __init__(self, config: pytest.Config, jobs: Sequence[Job], keep: Path) -> None:
        document = json.loads((keep / NAME).read_text(encoding="utf-8"))
        self._lines: dict[str, dict[str, list[str]]] = document["lines"]
        self._seconds: dict[str, float] = document["seconds"]
        self._all_jobs = jobs
        self._keep = keep
        self._shard, self._n_shards = map(int, config.getoption("shard").split("/"))
        self._slowest: float = config.getoption("slowest")
        self._most_seconds: float = config.getoption("seconds")
        self._patience_s: float = config.getoption("patience")
        self._items: dict[str, pytest.Item] = {}
        self._functions: Functions = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judges all places of this shard, in place of running the tests."""
        items = {item.nodeid: item for item in session.items}
        self._items = {t: i for t, i in items.items() if self._seconds.get(t, 1e9) < self._slowest}
        jobs = list(self._jobs())
        self._functions = functions_of({str(file) for file, _, _ in jobs})
        gc.freeze()  # forks share what nobody looks at
        path = self._keep / f"survivors-{self._shard}.jsonl"
        with path.open("a", encoding="utf-8") as results:
            for n, (file, number, place) in enumerate(jobs):
                record = self._judge(file, number, place)
                results.write(json.dumps(record) + "\n")
                results.flush()
                if n % 100 == 0:
                    print(f"{n} of {len(jobs)} places", file=sys.__stderr__, flush=True)
        return True

    def _fit(self, tests: set[str]) -> list[str]:
        """Returns the tests that pass in a fork of this session as it is."""
        path = self._keep / "fit.json"
        is_fit: dict[str, bool] = {}
        if path.exists():
            is_fit = json.loads(path.read_text(encoding="utf-8"))
        by_file: dict[str, list[str]] = {}
        for test in sorted(tests - is_fit.keys()):
            by_file.setdefault(test.split("::")[0], []).append(test)
        left = list(by_file.values())
        while left:
            group = left.pop()
            passed = self._run(group, lambda: True) == OUTCOMES[PASSED]
            if passed or len(group) == 1:
                is_fit.update(dict.fromkeys(group, passed))
                path.write_text(json.dumps(is_fit), encoding="utf-8")
            else:
                left += [group[: len(group) // 2], group[len(group) // 2 :]]
        return [test for test in sorted(tests) if is_fit[test]]

    def _jobs(self) -> Iterator[Job]:
        """Yields the places of this shard that nobody has judged yet."""
        judged = {
            (record["file"], record["number"])
            for path in self._keep.glob("survivors-*.jsonl")
            for record in map(json.loads, path.read_text(encoding="utf-8").splitlines())
        }
        for n, (file, number, place) in enumerate(self._all_jobs):
            if n % self._n_shards == self._shard and (str(file), number) not in judged:
                yield file, number, place

    def _judge(self, file: Path, number: int, place: Place) -> dict[str, Any]:
        """Returns what became of one place."""
        tests = self._tests_of(file, place)

        def tried(tests: list[str]) -> str:
            return (
                self._run(tests, lambda: apply(file, number, place, self._functions))
                if tests
                else "not reached"
            )

        outcome = tried(tests)
        # A test that fails in every fork says nothing of the change.
        is_dead = outcome in (OUTCOMES[FAILED], OUTCOMES[BROKEN], NO_END)
        if is_dead and len(fit := self._fit(set(tests))) < len(tests):
            tests, outcome = fit, tried(fit)
        return {
            "file": str(file),
            "number": number,
            **place._asdict(),
            "n_tests": len(tests),
            "outcome": outcome,
        }

    def _tests_of(self, file: Path, place: Place) -> list[str]:
        """Returns the tests that reach a place, or use a constant, the quickest first."""
        lines = [place.line]
        if place.within.startswith("="):
            text = file.read_text(encoding="utf-8").splitlines()
            lines = [n for n, line in enumerate(text, 1) if place.within[1:] in line]
        reached = self._lines.get(str(file), {})
        tests = {test for n in lines for test in reached.get(str(n), [])} & self._items.keys()
        selected, seconds = [], 0.0
        for test in sorted(tests, key=lambda test: (self._seconds[test], test)):
            seconds += self._seconds[test]
            if seconds > self._most_seconds:
                break
            selected.append(test)
        return selected

    def _run(self, tests: list[str], change: Callable[[], bool]) -> str:
        """Returns what tests said after a change, which no other run sees."""
        most_s = self._patience_s + 4 * sum(self._seconds[test] for test in tests)
        if (process := os.fork()) == 0:
            code = BROKEN
            try:
                os.setpgid(0, 0)
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                os.dup2(nowhere, 2)
                code = self._first_failure(tests) if change() else NOT_CHANGED
            finally:
                os._exit(code)
        return wait(process, most_s)

    def _first_failure(self, tests: list[str]) -> int:
        items = [self._items[test] for test in tests]
        for item, after in zip(items, [*items[1:], None], strict=True):
            if any(report.failed for report in runtestprotocol(item, False, after)):
                return FAILED
        return PASSED


def wait(process: int, most_s: float) -> str:
    """Returns how a fork ended; one that takes longer is killed with all it started."""
    end_s = time.monotonic() + most_s
    while time.monotonic() < end_s:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return OUTCOMES.get(os.waitstatus_to_exitcode(status), OUTCOMES[BROKEN])
        time.sleep(0.005)
    with contextlib.suppress(OSError):
        os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return NO_END


def functions_of(files: Set[str]) -> Functions:
    """Returns the functions of ``files`` that this process knows, by file and qualified name."""
    functions: Functions = {}
    resolved = cache(lambda name: str(Path(name).resolve()))
    for thing in gc.get_objects():
        if isinstance(thing, types.FunctionType):
            file = resolved(thing.__code__.co_filename)
            if file in files:
                functions.setdefault((file, thing.__code__.co_qualname), []).append(thing)
    return functions


def apply(file: Path, number: int, place: Place, functions: Functions) -> bool:
    """Changes a place in this process, wherever what it belongs to is known; says whether it did.

    Functions get other code, so that whoever holds one has it changed; constants are changed under
    their name in every module that has them.
    """
    tree = mutant(file.read_text(encoding="utf-8"), number)
    if place.within.startswith("="):
        return _apply_constant(file, tree, place.within[1:])
    changed = compile(tree, str(file), "exec", dont_inherit=True)
    made = {code.co_firstlineno: code for code in _codes(changed, place.within)}
    is_done = False
    for function in functions.get((str(file), place.within), ()):
        compiled = function.__code__
        code = made.get(compiled.co_firstlineno)
        if code is not None and code.co_freevars == compiled.co_freevars:
            function.__code__ = code
            is_done = True
    return is_done


def _codes(code: types.CodeType, name: str) -> Iterator[types.CodeType]:
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            if part.co_qualname == name:
                yield part
            else:
                yield from _codes(part, name)


def _apply_constant(file: Path, tree: ast.Module, name: str) -> bool:
    value = next(v for node in tree.body for n, v in constants(node) if n == name)
    modules = [m for m in list(sys.modules.values()) if isinstance(m, types.ModuleType)]
    modules_of_file = [
        m for m in modules if Path(getattr(m, "__file__", None) or ".").resolve() == file
    ]
    if not modules_of_file:
        return False
    before = getattr(modules_of_file[0], name)
    after = eval(compile(ast.Expression(value), str(file), "eval"), dict(vars(modules_of_file[0])))
    for module in modules_of_file if name.startswith("_") else modules:
        if vars(module).get(name) is before:
            setattr(module, name, after)
    return True
