"""A folder with a task in it, and a server whose model does the task in three calls of tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from .scripted_model import ScriptedModel

TASK = "Read notes.txt and write the answer to answer.txt"
NOTES = "The answer is 42, „zweiundvierzig“ 🙂.\n"
ANSWER = 'It is "42" 🙂\n'
SAID = "The answer is in answer.txt."


@dataclass(frozen=True)
class Task:
    """What is to be done in ``folder``. calls: those that were made."""

    folder: Path
    calls: list[str] = field(default_factory=list)

    def list_files(self) -> str:
        """Lists the files of the folder."""
        self.calls.append("list_files")
        return "\n".join(sorted(path.name for path in self.folder.iterdir()))

    def read_file(self, name: str) -> str:
        """Returns the text of a file."""
        self.calls.append("read_file")
        return (self.folder / name).read_text(encoding="utf-8")

    def write_file(self, name: str, text: str) -> str:
        """Writes a file."""
        self.calls.append("write_file")
        (self.folder / name).write_text(text, encoding="utf-8")
        return "written"

    def check(self, said: str) -> None:
        """Asserts that it was done, and that ``said`` was the last word."""
        assert self.calls in ([], ["list_files", "read_file", "write_file"])
        assert (self.folder / "answer.txt").read_text(encoding="utf-8") == ANSWER
        assert said == SAID


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "notes.txt").write_text(NOTES, encoding="utf-8")
    return Task(tmp_path / "task")


@pytest.fixture
def serve(make_server: Callable[..., Any], small_bundle: Path) -> Callable[..., Any]:
    """Returns what serves a model named ``scripted`` that says the given turns."""

    def make(*turns: str) -> Any:
        script = ScriptedModel(small_bundle, [*turns, SAID])
        return make_server([f"scripted={small_bundle}"], load=script.load)

    return make
