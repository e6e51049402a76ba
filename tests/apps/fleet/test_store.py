"""Results of tasks on the disk: kept, found again, and not believed when damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgedec.apps.fleet.store import Task, TaskResult, TaskStore
from edgedec.models.errors import ConfigError, EdgedecError

_TASK = Task({"kind": "eval", "index": 3})
_ANSWER = TaskResult("pi5", {"passed": 1.0}, {"max_celsius": 61.0}, {"model": "Pi 5"})


def the_file(folder: Path) -> Path:
    (path,) = (folder / "tasks").glob("*/*.json")
    return path


def test_what_was_written_is_found(tmp_path: Path) -> None:
    TaskStore(tmp_path).write(_TASK, _ANSWER)
    assert TaskStore(tmp_path / "other").find(_TASK) is None


def test_it_is_found_by_the_next_run(tmp_path: Path) -> None:
    store = TaskStore(tmp_path)
    store.write(_TASK, _ANSWER)
    assert store.find(_TASK) == _ANSWER
    assert store.find(Task({"kind": "eval", "index": 4})) is None
    assert store.find(Task(_TASK.fields, "orin")) is None


@pytest.mark.robustness
def test_cut_and_edited_files_are_done_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = TaskStore(tmp_path)
    store.write(_TASK, _ANSWER)
    whole = the_file(tmp_path).read_bytes()
    document = json.loads(whole)
    edited = json.dumps({**document, "result": {"passed": 0.0}}).encode()
    other = json.dumps({**document, "task": {"kind": "bench"}}).encode()
    deep = b"[" * 100_000
    for content in (*(whole[:n] for n in range(len(whole))), edited, other, deep, b"[]", b"null"):
        the_file(tmp_path).write_bytes(content)
        assert store.find(_TASK) is None
        assert "its task is done again" in capsys.readouterr().err


def test_one_fleet_writes_to_a_folder(tmp_path: Path) -> None:
    first = TaskStore(tmp_path)
    with pytest.raises(ConfigError, match="another fleet writes"):
        TaskStore(tmp_path)
    first.close()
    TaskStore(tmp_path).close()


@pytest.mark.robustness
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write"):
        TaskStore(tmp_path / "file")
    store = TaskStore(tmp_path / "found")
    (tmp_path / "found/tasks").rmdir()
    with pytest.raises(EdgedecError, match="what it holds is kept"):
        store.write(_TASK, _ANSWER)
