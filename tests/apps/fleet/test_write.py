"""Texts for trainings, which boards write together."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from edgedec.apps.fleet.store import Task, TaskResult
from edgedec.apps.fleet.write import _check, _Texts
from edgedec.kernels import cpu
from edgedec.models.errors import EdgedecError
from edgedec.runtime.opening.load import load
from edgedec.training.features.own_answers import OwnAnswers
from edgedec.training.features.reading import own_prompts
from edgedec.training.features.written_texts import enough_of

from .test_fleet import fleet_file, wait_for

N_TOKENS = 3_100  # three tasks


@pytest.mark.e2e
def test_shared_texts_are_those_of_a_run_alone(
    cli: Any, make_board: Any, small_bundle: Path, tmp_path: Path
) -> None:
    """One host vanishes in the middle and comes back; a second run asks nobody."""
    boards = [make_board("one"), make_board("two")]
    isa = "avx2" if "avx2" in cpu.available_isas() else cpu.active_isa()
    other = boards[1].table() + f'environment = {{EDGEDEC_ISA = "{isa}"}}\n'
    file = fleet_file(tmp_path, boards[0].table(), other)
    prompts = tmp_path / "prompts.jsonl"
    words = ("rain", "bread", "a cat", "the sea", "numbers")
    prompts.write_text("".join(json.dumps({"prompt": f"Describe {w}."}) + "\n" for w in words))
    tasks = tmp_path / "written/tasks"

    def cut() -> None:
        wait_for(lambda: tasks.is_dir() and len(list(tasks.glob("*/*.json"))) >= 1)
        boards[0].vanish()
        boards[0].start()

    cutting = threading.Thread(target=cut)
    cutting.start()
    command = ["fleet", "write", file, small_bundle, "--prompts", prompts, "--self", N_TOKENS,
               "-o", tmp_path / "written"]  # fmt: skip
    shared = cli(*command)
    cutting.join()
    assert shared.exit_code == 0, shared.err
    _, *lines = (tmp_path / "written/texts.jsonl").read_text().splitlines()
    with load(small_bundle) as engine:
        answers = OwnAnswers(engine, 0.7, 8, lambda: False)(own_prompts([], [prompts], engine))
        assert list(map(json.loads, lines)) == enough_of(answers, N_TOKENS)
        answers.close()
    n_before = [board.n_commands for board in boards]
    again = cli(*command)
    assert again.exit_code == 0, again.err
    assert "texts are there already" in again.err
    assert [board.n_commands for board in boards] == n_before


def test_there_are_as_many_groups_as_texts_are_long() -> None:
    texts = _Texts(itertools.repeat([1, 2]), {"kind": "write"})
    assert texts.n_missing(192 * 8 * 3) == 3
    (task,) = texts.add_groups(1)
    texts.answers[task.key] = TaskResult("one", [[1, 2] + [3] * 10] * 8, {}, {})
    assert texts.n_missing(12 * 8) == 0
    assert texts.n_missing(12 * 8 * 3) == 2
    ending = _Texts(iter([[1]] * 9), {"kind": "write"})
    assert [len(task.fields["prompts"]) for task in ending.add_groups(5)] == [8, 1]


def test_texts_end_before_one_that_is_missing() -> None:
    texts = _Texts(itertools.repeat([1]), {"kind": "write"})
    first, _, third = texts.add_groups(3)
    for task in (first, third):
        texts.answers[task.key] = TaskResult("one", [[1, 2]] * 8, {}, {})
    assert len(list(texts.written())) == 8


@pytest.mark.parametrize(
    "sent", [[[1, 2]], [[1, 2], [2, 3]], [[1, 9], [1]], "x", None, [[1], [1.0]]]
)
def test_what_is_no_answer_is_refused(sent: Any) -> None:
    task = Task({"kind": "write", "prompts": [[1], [1]]})
    with pytest.raises(EdgedecError, match="one sent what are no answers"):
        _check(task, TaskResult("one", sent, {}, {}), 9)
    _check(task, TaskResult("one", [[1, 8], [1]], {}, {}), 9)
