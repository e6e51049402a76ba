"""Suggestions on Wayland, in a GNOME Shell without a screen: `make test-desktop`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from .conftest import (
    EDGEDEC,
    FIELDS,
    PLACES,
    PYTHON,
    Session,
    needs_programs,
    needs_toolkit,
    wait_for,
)

pytestmark = pytest.mark.toolkits

TEXT = "thank you very mu"
AS_LINUX_HAS_IT = 8
"""What X11's codes of keys are more than Linux'."""

_KEYBOARD = "Main.panel.statusArea.keyboard"
_OURS = f"{_KEYBOARD}._propSection"
_ITEMS = """const all = (menu) => menu._getMenuItems().flatMap(
    (item) => item.menu ? [item, ...all(item.menu)] : [item]);"""
"""A function of the shell that returns the items of a menu."""


class Gnome(Session):
    """A session of GNOME on Wayland.

    Args:
        options: Of `edgedec type`, which is installed with them before the session begins; none:
            it is not.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder)
        self.environment |= {
            "DBUS_SYSTEM_BUS_ADDRESS": self.start_bus(), "XDG_SESSION_TYPE": "wayland",
            "XDG_SESSION_ID": "c1", "XDG_CURRENT_DESKTOP": "GNOME", "GSETTINGS_BACKEND": "keyfile",
            "LIBGL_ALWAYS_SOFTWARE": "1", "GDK_BACKEND": "wayland",
        }  # fmt: skip
        if options:
            self._install(options)
        self.start(PYTHON, "-m", "dbusmock", "--system", "--template", "logind")
        wait_for(lambda: b"login1" in self._call("DBus", "/", "ListNames", bus="system"), "logind")
        self.start(
            "gnome-shell", "--wayland", "--headless", "--unsafe-mode", "--no-x11",
            "--virtual-monitor", "1000x700",
        )  # fmt: skip
        wait_for(lambda: "true" in self.ask("!Main.layoutManager._startingUp"), "the shell")
        keyboard = "imports.gi.Clutter.InputDeviceType.KEYBOARD_DEVICE"
        seat = "imports.gi.Clutter.get_default_backend().get_default_seat()"
        self.ask(f"global.keyboard = {seat}.create_virtual_device({keyboard}); 1")
        self.environment["WAYLAND_DISPLAY"] = "wayland-0"
        wait_for(lambda: b"unix:" in self.output("ibus", "address"), "IBus")
        # Once, when a session begins, the shell chooses the keyboard's engine (docs/type.md).
        wait_for(lambda: b"xkb:" in self.output("ibus", "engine"), "the shell's engine")

    def _install(self, options: Sequence[str]) -> None:
        sources = ("org.gnome.desktop.input-sources", "sources")
        self.output("gsettings", "set", *sources, "[('xkb', 'us')]")
        self.output(*EDGEDEC, "type", *options, "--install")
        settings = Path(self.environment["XDG_CONFIG_HOME"])
        for line in (settings / "environment.d" / "60-edgedec-type.conf").read_text().splitlines():
            name, _, value = line.partition("=")
            self.environment[name] = value  # as systemd does when a session begins

    def ask(self, script: str) -> str:
        """Returns what a script in the shell comes to."""
        return self._call("gnome.Shell", "/org/gnome/Shell", "gnome.Shell.Eval", script).decode()

    def _call(self, name: str, path: str, method: str, *arguments: str, bus: str = "session"):
        owner = "org.freedesktop.DBus" if name == "DBus" else f"org.{name}"
        method = f"{owner}.{method}" if name == "DBus" else f"org.{method}"
        command = ("--dest", owner, "--object-path", path, "--method", method, *arguments)
        return self.output("gdbus", "call", f"--{bus}", *command)

    def key(self, name: str) -> None:
        code = PLACES[name] - AS_LINUX_HAS_IT
        press = "global.keyboard.notify_key(0, {}, {});"
        self.ask(press.format(code, 1) + press.format(code, 0) + "1")

    def choose_source(self, name: str) -> None:
        """Chooses an input source of the keyboard's menu in the top bar."""
        sources = "imports.ui.status.keyboard.getInputSourceManager()"
        chosen = f"Object.values({sources}.inputSources).find((s) => s.id === '{name}')"
        self.ask(f"{chosen}.activate(true); 1")

    def menu(self) -> list[str]:
        """Returns the lines of our part of the keyboard's menu, those of submenus behind theirs."""
        lines = self.ask(f"{_ITEMS} all({_OURS}).map((item) => item.label.text).join('/')")
        return lines.partition('"')[2].rpartition('"')[0].split("/")

    def choose(self, line: str) -> None:
        """Presses Enter on a line of our part of the keyboard's menu, which it opens."""
        found = f"all({_OURS}).find((item) => item.label.text === '{line}')"
        self.ask(f"{_KEYBOARD}.menu.open(); {_ITEMS} {found}.grab_key_focus(); 1")
        self.key("\n")

    def shown(self) -> str:
        """Returns the auxiliary text that is shown; empty if none is."""
        popup = "imports.misc.ibusManager.getIBusManager()._candidatePopup"
        answer = self.ask(f"{popup}.visible ? {popup}._auxText.text : ''")
        return str(json.loads(answer[answer.index("'") + 1 : answer.rindex("'")]))

    def open_fields(self, log: Path) -> None:
        """Opens a window with a text field, in front."""
        self.start(PYTHON, str(FIELDS), "gtk4", str(log))
        first = "global.get_window_actors()[0]"
        to_front = f"Main.overview.hide(); {first} && Main.activateWindow({first}.meta_window); "
        title = "global.display.focus_window ? global.display.focus_window.title : ''"
        wait_for(lambda: "fields" in self.ask(to_front + title), "the window")


def needs_gnome() -> None:
    """Skips, and says which packages are missing."""
    needs_programs()
    needs_toolkit("gtk4")
    if not shutil.which("gnome-shell"):
        pytest.skip("needs packages of the system: gnome-shell")
    if subprocess.run([PYTHON, "-c", "import dbusmock"], capture_output=True).returncode:
        pytest.skip("needs packages of the system: python3-dbusmock")


@pytest.fixture
def gnome(tmp_path: Path) -> Iterator[Gnome]:
    needs_gnome()
    session = Gnome(tmp_path)
    yield session
    session.close()


@pytest.fixture
def installed(tmp_path: Path, smollm2_bundle: Path) -> Iterator[Gnome]:
    """A session that `edgedec type --install` was done for."""
    needs_gnome()
    session = Gnome(tmp_path, str(smollm2_bundle), "--threads", "1")
    yield session
    session.close()


def test_suggestions_on_wayland(gnome: Gnome, smollm2_bundle: Path, tmp_path: Path) -> None:
    """Tab takes what the shell shows below the caret; Escape leaves the text as it is."""
    log = tmp_path / "fields.jsonl"
    gnome.start_type(smollm2_bundle, "--threads", "1")
    gnome.open_fields(log)

    def text() -> str:
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        return next((row["text"] for row in reversed(rows) if row.get("text")), "")

    def becomes(expected: str) -> None:
        wait_for(lambda: text() == expected, f"{expected!r}")

    written = ""
    for is_taken in (True, False):
        for character in TEXT:
            gnome.key(character)
        written += TEXT
        becomes(written)
        wait_for(gnome.shown, "a suggestion")
        gnome.settle()
        ghost = gnome.shown()
        gnome.key("Tab" if is_taken else "Escape")
        wait_for(lambda: not gnome.shown(), "an end of the suggestion")
        gnome.key("\n")
        written += (ghost if is_taken else "") + "\n"
        becomes(written)


def test_menu_in_the_top_bar(installed: Gnome, smollm2_bundle: Path, tmp_path: Path) -> None:
    """The keyboard's menu has our lines while our input source is chosen. They do what they say."""
    settings = Path(installed.environment["XDG_CONFIG_HOME"]) / "edgedec" / "type.json"
    installed.start_type(smollm2_bundle, "--threads", "1")
    installed.open_fields(tmp_path / "fields.jsonl")
    installed.choose_source("edgedec")
    lines = ["Suggest words", "Suggest less often", "Suggest more often", "Model"]
    wait_for(lambda: installed.menu() == [*lines, smollm2_bundle.stem], "our lines in the menu")
    for character in TEXT:
        installed.key(character)
    wait_for(installed.shown, "a suggestion")
    installed.choose("Suggest words")
    wait_for(settings.exists, "settings")
    assert json.loads(settings.read_text())["is_on"] is False
    wait_for(lambda: not installed.shown(), "an end of the suggestion")
