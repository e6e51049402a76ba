"""`edgedec desktop` as a program: how it begins, and how it ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..conftest import Cli
from .conftest import answer, until  # it skips where there is no PySide6

from PySide6.QtTest import QTest  # isort: skip

from edgedec.apps.desktop.recovery import Draft, Recovery
from edgedec.apps.desktop.settings import EditorSettings, SettingsFile
from edgedec.apps.desktop.text_file import Stamp
from edgedec.apps.desktop.window import EditorWindow
from edgedec.autocomplete import AutocompleteConfig

pytestmark = pytest.mark.slow

PLAIN = AutocompleteConfig(method="plain")
"""Without a first look at what passes of all sizes cost, which takes a slow machine a minute."""

MAIN = "from edgedec.apps.cli import main; main()"

TYPING = """
from PySide6.QtCore import QTimer
from edgedec.apps.cli import main
from edgedec.apps.desktop.window import EditorWindow

show = EditorWindow.show

def show_and_type(window):
    show(window)
    QTimer.singleShot(50, lambda: window.documents[0].insertPlainText("unsaved \\u00e9"))

EditorWindow.show = show_and_type
main()
"""

TELLING = """
import sys
from PySide6.QtCore import QTimer
from edgedec.apps.cli import main
from edgedec.apps.desktop.window import EditorWindow

show = EditorWindow.show

def tell(window):
    tabs = window.tabs
    titles = [tabs.tabText(i) for i in range(tabs.count())]
    print(titles, tabs.currentIndex(), window.strip.state.text(), file=sys.stderr)
    window.close()

def show_and_tell(window):
    show(window)
    QTimer.singleShot(50, lambda: tell(window))

EditorWindow.show = show_and_tell
main()
"""

Begin = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Returns a starter of editors in processes of their own, ended behind the test."""
    begun = []

    def start(program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        given = {
            "QT_QPA_PLATFORM": "offscreen",
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "XDG_STATE_HOME": str(tmp_path / "state"),
        }
        kept = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
        begun.append(
            subprocess.Popen(
                [sys.executable, "-c", program, "desktop", *arguments],
                env={**kept, **given, **environment},
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return begun[-1]

    yield start
    for editor in begun:
        editor.kill()
        editor.communicate()


def drafts(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "state" / "edgedec" / "desktop").glob("*/*.json"))


def wait_for_draft(tmp_path: Path) -> Path:
    end_s = time.monotonic() + 60
    while not (found := drafts(tmp_path)):
        assert time.monotonic() < end_s
        time.sleep(0.02)
    return found[0]


def test_no_display_is_one_line(begin: Begin) -> None:
    for platform, reason in (("", "neither DISPLAY nor WAYLAND_DISPLAY is set"), ("no", "=no")):
        editor = begin(MAIN, QT_QPA_PLATFORM=platform)
        _, reported = editor.communicate(timeout=180)
        assert editor.returncode == 1
        assert reported.startswith("error: desktop needs a display: ")
        assert reason in reported
        assert reported.count("\n") == 1


def test_the_missing_extra_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("edgedec.apps.desktop.command")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "PySide6", None)
    monkeypatch.setitem(sys.modules, "PySide6.QtCore", None)
    done = cli("desktop")
    assert done.exit_code == 1
    assert done.error == "error: desktop needs PySide6: pip install 'edgedec-runtime[desktop]'"


def test_the_first_start_leads_to_a_model(begin: Begin, tmp_path: Path) -> None:
    _, reported = begin(TELLING).communicate(timeout=180)
    assert "['Welcome', 'untitled'] 0 No model: get one" in reported
    file = tmp_path / "a.txt"
    file.write_text("a")
    _, reported = begin(TELLING, str(file)).communicate(timeout=180)
    assert "['a.txt'] 0 " in reported  # who opens a file wants to write


def test_text_survives_a_kill(begin: Begin, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"saved\r\n")
    editor = begin(TYPING, str(file))
    draft = wait_for_draft(tmp_path)
    editor.kill()
    editor.wait()
    assert draft.stat().st_mode & 0o777 == 0o600
    assert draft.parent.stat().st_mode & 0o777 == 0o700
    recovery = Recovery(draft.parent.parent)
    (left,) = recovery.left_behind()
    assert (left.path, left.text) == (str(file), "unsaved \u00e9saved\r\n")
    assert file.read_bytes() == b"saved\r\n"
    recovery.close()


def test_a_bundle_is_used_from_now_on(begin: Begin, smollm2_bundle: Path, tmp_path: Path) -> None:
    begin(TYPING, str(smollm2_bundle))
    wait_for_draft(tmp_path)
    kept_in = SettingsFile(tmp_path / "config" / "edgedec")
    assert kept_in.read().bundle == str(smollm2_bundle)


def test_a_mistyped_bundle_leaves_the_one_that_works(begin: Begin, tmp_path: Path) -> None:
    kept_in = SettingsFile(tmp_path / "config" / "edgedec")
    kept_in.write(EditorSettings(bundle="works.edgedec"))
    editor = begin(TYPING, "any.edgedec")
    _, errors = editor.communicate(timeout=180)
    assert editor.returncode == 1
    assert errors.startswith("error: any.edgedec: found nothing, expected a bundle directory")
    assert kept_in.read().bundle == "works.edgedec"


def test_a_request_to_end_keeps_unsaved_text(begin: Begin, tmp_path: Path) -> None:
    editor = begin(TYPING)
    draft = wait_for_draft(tmp_path)
    editor.send_signal(signal.SIGTERM)
    _, reported = editor.communicate(timeout=180)
    assert editor.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in reported
    assert Draft.parse(draft.read_bytes()) is not None


@pytest.mark.parametrize(
    ("button", "shown", "is_left"),
    [("Open", "text", False), ("Forget", "", False), ("Later", "", True)],
)
def test_what_was_left_behind_is_asked_about(
    tmp_path: Path,
    open_window: Callable[..., EditorWindow],
    button: str,
    shown: str,
    is_left: bool,
) -> None:
    before = Recovery(tmp_path / "state")
    before.keep("key", Draft("a.txt", str(tmp_path / "a.txt"), "text", False, 2))
    before.close(is_kept=True)
    window = open_window()
    asked = answer(button)
    window.open_left_behind()
    assert asked == ["An editor ended before this was saved: a.txt."]
    assert window.current is not None
    assert window.current.toPlainText() == shown
    assert window.current.is_modified is bool(shown)
    window.current.document().setModified(False)
    if shown:
        assert window.current.textCursor().position() == 2
    window.close()
    until(lambda: bool(list((tmp_path / "state").glob("*/key.json"))) is is_left)


@pytest.mark.parametrize("by_another", [False, True])
def test_what_others_wrote_since_is_not_overwritten_unasked(
    tmp_path: Path, open_window: Callable[..., EditorWindow], by_another: bool
) -> None:
    (path := tmp_path / "a.txt").write_text("before")
    before = Recovery(tmp_path / "state")
    before.keep("key", Draft("a.txt", str(path), "mine", False, 0, Stamp.of(path)))
    before.close(is_kept=True)
    if by_another:
        path.write_text("of another program")
    window = open_window()
    answer("Open")
    window.open_left_behind()
    assert window.current is not None
    assert window.current.toPlainText() == "mine"
    assert window.current.is_changed_on_disk is by_another
    window.current.document().setModified(False)
    window.close()


def test_what_another_editor_has_open_is_not_taken(tmp_path: Path) -> None:
    running = Recovery(tmp_path)
    running.keep("key", Draft("a", "", "text", False, 0))
    running._writer.submit(lambda: None).result()
    other = Recovery(tmp_path)
    assert other.left_behind() == []
    other.close()
    running.close()


def test_a_draft_that_makes_no_sense_is_left_out(tmp_path: Path) -> None:
    before = Recovery(tmp_path)
    before.keep("good", Draft("a", "", "text", False, 0))
    before.close(is_kept=True)
    (folder,) = tmp_path.iterdir()
    (folder / "bad.json").write_bytes(b"\xff{")
    (folder / "other.json").write_text("[]")
    after = Recovery(tmp_path)
    assert [draft.text for draft in after.left_behind()] == ["text"]
    after.forget_left_behind()
    after.close()
    assert list(tmp_path.iterdir()) == []


def test_a_real_model_in_the_window(
    open_window: Callable[..., EditorWindow], smollm2_bundle: Path
) -> None:
    window = open_window(EditorSettings(bundle=str(smollm2_bundle), context=512, typing=PLAIN))
    until(lambda: window.suggester.completer is not None, 60)
    edit = window.current
    assert edit is not None
    edit.setFocus()
    QTest.keyClicks(edit, "The sun rises in the east and sets in the")
    until(lambda: edit.offered.startswith(" west"))
    assert window.strip.state.text().startswith("Suggestions on · ")
    assert window.strip.state.text().endswith(" ms")
    QTest.keyClicks(edit, " ")
    assert edit.offered.startswith("west")
    window.pausing.toggle()
    assert edit.offered == ""
    window.pausing.toggle()
    edit.document().setModified(False)
    assert window.close()  # in the middle of whatever it computes
    assert window.suggester.completer is None


def test_a_bundle_that_is_replaced_is_loaded_again(
    open_window: Callable[..., EditorWindow], smollm2_bundle: Path, tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(smollm2_bundle, tmp_path / "own.edgedec", copy_function=os.link))
    window = open_window(EditorSettings(bundle=str(bundle), context=512, spelling="", typing=PLAIN))
    first = wait_for_another(window, None)
    edit = window.current
    assert edit is not None
    old = bundle.rename(bundle.with_name("old.edgedec"))
    until(lambda: "is gone" in window.strip.currentMessage())
    QTest.keyClicks(edit, "The sun rises in the east and sets in the")
    until(lambda: edit.offered.startswith(" west"))
    shutil.copytree(old, bundle.with_name("new.edgedec"), copy_function=os.link).rename(bundle)
    second = wait_for_another(window, first)
    QTest.keyClicks(edit, " ")
    until(lambda: edit.offered.startswith("west"))
    manifest = bundle / "manifest.json"
    manifest.unlink()  # a link to the one that others use
    manifest.write_text("{}")
    until(lambda: "manifest: " in window.strip.currentMessage())
    assert window.suggester.completer is second
    manifest.unlink()
    os.link(old / "manifest.json", manifest)
    wait_for_another(window, second)
    until(lambda: not window.strip.currentMessage(), 10)  # a bundle in use clears the old error
    edit.document().setModified(False)


def wait_for_another(window: EditorWindow, known: object) -> object:
    until(lambda: window.suggester.completer not in (None, known), 60)
    assert window.suggester.completer is not None
    return window.suggester.completer
