"""The process that has a window's model: what happens when it ends, and when the window does."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from .conftest import until  # it skips where there is no PySide6

from PySide6.QtTest import QTest  # isort: skip

from edgedec.apps.desktop.settings import EditorSettings
from edgedec.apps.desktop.window import EditorWindow
from edgedec.apps.typing.model_worker import Worker
from edgedec.autocomplete import Document

from .test_program import MAIN, PLAIN, Begin, begin, wait_for_another

pytestmark = pytest.mark.slow

__all__ = ["begin"]

TEXT = "The sun rises in the east and sets in the"

TELLING = f"""
import sys
from PySide6.QtCore import QTimer
from edgedec.apps.desktop.served_model import ServedModel

start = ServedModel._start

def start_and_tell(model):
    start(model)
    print(model._process.processId(), file=sys.stderr, flush=True)

ServedModel._start = start_and_tell
{MAIN}
"""


def settings(bundle: Path) -> EditorSettings:
    return EditorSettings(bundle=str(bundle), context=512, spelling="", typing=PLAIN)


def process_id(window: EditorWindow) -> int:
    process = window.model._process
    return 0 if process is None else process.processId()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_model_that_is_killed_is_started_again(
    open_window: Callable[..., EditorWindow], smollm2_bundle: Path
) -> None:
    window = open_window(settings(smollm2_bundle))
    first = wait_for_another(window, None)
    edit = window.current
    assert edit is not None
    QTest.keyClicks(edit, TEXT)
    os.kill(process_id(window), signal.SIGKILL)
    until(lambda: "is started again" in window.strip.currentMessage())
    assert edit.toPlainText() == TEXT
    QTest.keyClicks(edit, " ")  # nobody is there yet to be asked
    wait_for_another(window, first)
    until(lambda: edit.offered.startswith("west"))


def test_a_model_that_always_ends_is_left_alone(
    open_window: Callable[..., EditorWindow], smollm2_bundle: Path
) -> None:
    window = open_window(settings(smollm2_bundle))
    killed: set[int] = set()

    def kill() -> bool:
        if (pid := process_id(window)) and pid not in killed:
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        return "nothing is offered any more" in window.strip.currentMessage()

    until(kill)
    assert len(killed) == 3
    assert window.suggester.completer is None
    window.follow(settings(smollm2_bundle))  # as if it was chosen again
    wait_for_another(window, None)


def test_a_window_that_is_killed_takes_the_model_along(begin: Begin, smollm2_bundle: Path) -> None:
    editor = begin(TELLING, str(smollm2_bundle))
    assert editor.stderr is not None
    pid = int(editor.stderr.readline())
    assert is_alive(pid)
    editor.kill()
    editor.wait()
    until(lambda: not is_alive(pid))


def test_a_window_closes_while_a_bundle_is_loaded(
    open_window: Callable[..., EditorWindow], smollm2_bundle: Path
) -> None:
    window = open_window(settings(smollm2_bundle))
    until(lambda: "Loading" in window.strip.state.text())
    pid = process_id(window)
    assert window.suggester.completer is None
    assert window.close()
    assert not is_alive(pid)


def test_settings_are_followed_without_loading_again(
    open_window: Callable[..., EditorWindow], smollm2_bundle: Path
) -> None:
    window = open_window(settings(smollm2_bundle))
    first = wait_for_another(window, None)
    pid = process_id(window)
    loaded: list[str] = []
    window.model.loading.connect(loaded.append)
    window.follow(replace(settings(smollm2_bundle), typing=replace(PLAIN, max_new_tokens=4)))
    wait_for_another(window, first)
    assert (process_id(window), loaded) == (pid, [])
    edit = window.current
    assert edit is not None
    QTest.keyClicks(edit, TEXT)
    until(lambda: edit.offered.startswith(" west"))
    edit.show_other(1)
    until(lambda: edit.offered and not edit.offered.startswith(" west"))


def test_what_was_read_is_kept_when_the_window_closes(
    open_window: Callable[..., EditorWindow],
    smollm2_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "kept"))
    window = open_window(replace(settings(smollm2_bundle), keeps_session=True, learns=True))
    wait_for_another(window, None)
    edit = window.current
    assert edit is not None
    QTest.keyClicks(edit, TEXT)
    until(lambda: edit.offered.startswith(" west"))
    edit.document().setModified(False)
    assert window.close()
    kept = tmp_path / "kept" / "edgedec"
    assert len(list((kept / "sessions").glob("*.session"))) == 1
    assert (kept / "learned" / "offers.json").is_file()


def test_it_is_kept_also_where_the_window_let_go_before_it_closed(
    smollm2_bundle: Path, tmp_path: Path
) -> None:
    """What a window sends last is `release`, then the end: the one may be done before the other."""
    reported: list[tuple[str, dict[str, Any]]] = []
    worker = Worker(lambda name, **what: reported.append((name, what)))
    source = {"bundle": str(smollm2_bundle), "threads": 2, "context": 512}
    memory = {"learn": "", "session": str(tmp_path / "sessions")}
    worker.follow({**source, "memory": memory}, asdict(PLAIN), "", False)
    until(lambda: "serving" in dict(reported))
    worker.update(1, 1, asdict(Document(TEXT, len(TEXT))))
    until(lambda: "offer" in dict(reported))
    worker.release(1)
    until(lambda: not worker._served)
    worker.end()
    assert len(list((tmp_path / "sessions").glob("*.session"))) == 1
    assert "failed" not in dict(reported)
