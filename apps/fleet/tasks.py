"""The work of a fleet, as a host does it. A task and what comes of it are JSON texts.

So a fleet reads nothing from its hosts but text that it parses.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from distributed import get_worker

from edgedec.apps.evaluation.job import TaskName, TaskOptions, make_job, make_settings, make_work
from edgedec.apps.evaluation.samples import Setting
from edgedec.apps.evaluation.work import Work
from edgedec.apps.options.common import LoadOptions, RequestOptions
from edgedec.apps.programs.contained import check_programs_run
from edgedec.runtime.engine.at_once import choose_n_at_once
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.system.device import read_device, read_state
from edgedec.training.features.own_answers import OwnAnswers

_FILES = "files"
_EDGEDEC = "from edgedec.apps.cli import main; main()"
_root = Path()
_names: dict[str, str] = {}
_running: subprocess.Popen[str] | None = None
_opened: tuple[str, ExitStack, Work, list[Setting]] | None = None
_warm: set[str] = set()


def run_task(text: str) -> str:
    """Returns what came of a task: ``result``, or ``error`` in one line; which worker did
    it, and the state of its host."""
    task = json.loads(text)
    try:
        answer: dict[str, Any] = {"result": _KINDS[task["kind"]](task)}
    except Exception as error:  # whatever it is, the fleet names this host and goes on
        said = str(error) or type(error).__name__
        answer = {"error": said.splitlines()[0]}
    host = str(get_worker().name)
    here = {"state": dataclasses.asdict(read_state()), "device": dataclasses.asdict(_device())}
    return json.dumps({**answer, "host": host, **here})


_device = cache(read_device)  # it stays the same


def use_files(root: Path, names: Mapping[str, str]) -> None:
    """Says where tasks find what was copied: below ``root``, by what tasks call it."""
    global _root
    _root = root
    _names.update(names)


def stop_program() -> None:
    """Ends the program that a task waits for."""
    if _running is not None:
        _running.kill()


def _bench(task: dict[str, Any]) -> Any:
    """Returns the result file of `edgedec bench`, which runs in a process of its own."""
    global _running
    with tempfile.TemporaryDirectory(dir=_root) as folder:
        saved = Path(folder) / "result.json"
        command = [sys.executable, "-c", _EDGEDEC, "bench", str(_folder(task["bundle"])),
                   *task["options"], "--save", str(saved), "--label", task["label"]]  # fmt: skip
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True,
        ) as _running:  # fmt: skip
            errors = _running.stderr.read() if _running.stderr is not None else ""
        if _running.returncode != 0:
            raise RuntimeError(_last_line(errors, _running.returncode))
        return json.loads(saved.read_text(encoding="utf-8"))


def _last_line(errors: str, code: int) -> str:
    lines = [line.removeprefix("error: ") for line in errors.splitlines() if line.strip()]
    return lines[-1] if lines else f"bench ended with {code}"


def _evaluate(task: dict[str, Any]) -> Any:
    """Returns the sample of one problem under one setting."""
    work, settings = _open(task)
    setting = next(setting for setting in settings if setting.label == task["setting"])
    if setting.label not in _warm:
        work.warm_up(setting)
        _warm.add(setting.label)
    return work.take(setting, task["index"]).to_dict()


def _open(task: dict[str, Any]) -> tuple[Work, list[Setting]]:
    """Returns the evaluation that a task is of, opened once for all of its tasks."""
    global _opened
    key = json.dumps([task[part] for part in ("bundle", "data", "what", "loading", "request")])
    if _opened is None or _opened[0] != key:
        if _opened is not None:
            _opened[1].close()
            _opened = None
        _warm.clear()
        _opened = (key, *_make(task))
    return _opened[2], _opened[3]


def _make(task: dict[str, Any]) -> tuple[ExitStack, Work, list[Setting]]:
    values = dict(task["what"])
    values |= {"task": TaskName(values["task"]), "data": _folder(task["data"]) / task["data_name"]}
    job = make_job(
        _folder(task["bundle"]),
        TaskOptions(**values),
        LoadOptions(**task["loading"]),
        RequestOptions(**task["request"]),
    )
    if job.task in (TaskName.HUMAN_EVAL, TaskName.INFILL):
        check_programs_run(job.limits, job.what.uncontained_programs)
    stack = ExitStack()
    work, how = make_work(job, stack)
    return stack, work, make_settings(job, how)


def _write(task: dict[str, Any]) -> Any:
    """Returns prompts, each with the model's answer behind, written side by side."""
    engine, n_at_once = _open_engine(_folder(task["bundle"]))
    answers = OwnAnswers(engine, task["temperature"], n_at_once, lambda: False)
    return list(answers(task["prompts"], task["first"]))


@lru_cache(maxsize=1)
def _open_engine(bundle: Path) -> tuple[Engine, int]:
    """Returns the engine of a bundle, and how many texts it writes at once in the least time."""
    engine = load(bundle, EngineOptions(draft=False))
    return engine, choose_n_at_once(None, engine)


def _folder(name: str) -> Path:
    return _root / _FILES / _names[name]


_KINDS = {"bench": _bench, "eval": _evaluate, "write": _write}
