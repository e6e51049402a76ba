"""Results of tasks in a folder, so that a fleet that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from edgedec.apps.console.terminal import note
from edgedec.models.errors import ConfigError, EdgedecError
from edgedec.system.files import replacing
from edgedec.system.locks import lock_folder

_PARTS = ("host", "result", "state", "device")
"""Of an answer, as a file has them."""


@dataclass(frozen=True)
class Task:
    """What a host is asked to do. host: the label of the only one that may; None: any."""

    fields: Mapping[str, Any]
    host: str | None = None

    @property
    def text(self) -> str:
        """The task as hosts read it."""
        return json.dumps(dict(self.fields), sort_keys=True)

    @property
    def key(self) -> str:
        """Names the task: equal tasks have equal results."""
        return hashlib.sha256(f"{self.host or ''}\n{self.text}".encode()).hexdigest()[:32]


@dataclass(frozen=True)
class TaskResult:
    """What came of a task: its result, and from which host, as it was then."""

    host: str
    result: Any
    state: Mapping[str, Any]
    device: Mapping[str, Any]


class TaskStore:
    """The results in a folder, one file each, named by their task."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder if need be; one fleet writes to it at a time.

        Raises:
            ConfigError: It cannot be made, or another fleet writes to it.
        """
        self._folder = folder / "tasks"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(self._folder)
        except OSError as error:
            raise ConfigError(f"cannot write to {folder}: {error.strerror or error}") from None
        if self._lock is None:
            raise ConfigError(f"another fleet writes to {folder}: name another folder")

    def find(self, task: Task) -> TaskResult | None:
        """Returns what came of a task earlier; None if nothing did, or its file is damaged."""
        path = self._path(task)
        try:
            content = json.loads(path.read_bytes())
            if content["task"] == json.loads(task.text) and content["hash"] == _hash(content):
                return TaskResult(*(content[name] for name in _PARTS))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            pass
        note(f"{path.name} is damaged or was edited: its task is done again")
        return None

    def write(self, task: Task, answer: TaskResult) -> None:
        """Keeps an answer, whole or not at all.

        Raises:
            EdgedecError: This machine's disk is full.
        """
        document = {
            "task": dict(task.fields),
            **{name: getattr(answer, name) for name in _PARTS},
        }
        try:
            path = self._path(task)
            path.parent.mkdir(exist_ok=True)
            with replacing(path) as file:
                file.write(json.dumps({**document, "hash": _hash(document)}).encode())
        except OSError as error:
            raise EdgedecError(
                f"cannot write to {self._folder}: {error.strerror or error}; what it holds is kept"
            ) from None

    def close(self) -> None:
        """Lets other fleets write to the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _path(self, task: Task) -> Path:
        # In 256 folders: each write looks through its own for what killed writers left.
        return self._folder / task.key[:2] / f"{task.key}.json"


def _hash(document: Mapping[str, Any]) -> str:
    parts = [document[name] for name in ("task", *_PARTS)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
