"""A desktop of our own: an X server without a screen, a session bus, IBus, and real keys."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = {
    "Xvfb": "xvfb", "dbus-daemon": "dbus", "openbox": "openbox", "ibus-daemon": "ibus",
    "setxkbmap": "x11-xkb-utils",
}  # fmt: skip
"""Programs that are needed -> Debian's packages."""

TOOLKITS = {
    "gtk3": ("import gi; gi.require_version('Gtk', '3.0')", "python3-gi gir1.2-gtk-3.0 ibus-gtk3"),
    "gtk4": ("import gi; gi.require_version('Gtk', '4.0')", "python3-gi gir1.2-gtk-4.0 ibus-gtk4"),
    "qt5": ("import PyQt5.QtWidgets", "python3-pyqt5"),
    "qt6": ("import PyQt6.QtWidgets", "python3-pyqt6"),
    "vte": ("import gi; gi.require_version('Vte', '2.91')", "python3-gi gir1.2-vte-2.91 ibus-gtk3"),
}
"""Toolkit -> what the system's Python must be able to do, and Debian's packages for it."""

BROWSERS = {
    "chromium": (
        "chromium", "--no-sandbox", "--no-first-run", "--disable-gpu", "--disable-sync",
        "--disable-background-networking", "--password-store=basic", "--window-size=700,500",
        "--user-data-dir={profile}", "--app={page}",
    ),
    "firefox": ("firefox-esr", "--new-instance", "--profile", "{profile}", "--kiosk", "{page}"),
}  # fmt: skip
"""Browser -> its command, whose program has the name of Debian's package."""

PYTHON = "/usr/bin/python3"
EDGEDEC = [sys.executable, "-c", "from edgedec.apps.cli import main; main()"]
FIELDS = Path(__file__).with_name("fields.py")
PATIENCE_S = 60.0
N_STILL = 5
"""Looks at the processes in a row that must find all of them waiting."""


# Places of keys on a US keyboard: X11's codes, which are Linux' plus 8.
PLACES = {
    character: first + i
    for first, row in zip(
        (10, 24, 38, 52), ("1234567890-=", "qwertyuiop[]", "asdfghjkl;'", "zxcvbnm,./"), strict=True
    )
    for i, character in enumerate(row)
} | {
    " ": 65, "`": 49, "\\": 51, "Tab": 23, "\n": 36, "Escape": 9, "BackSpace": 22, "Left": 113,
    "Right": 114, "Home": 110, "End": 115, "Delete": 119, "ctrl": 37, "shift": 50, "alt": 64,
    "altgr": 108, "menu": 135,
}  # fmt: skip
SHIFTED = dict(zip('!@#$%^&*()_+{}:"<>?~', "1234567890-=[];',./`", strict=True))


def needs_programs() -> None:
    """Skips, and says which packages are missing."""
    pytest.importorskip("dbus_fast")
    pytest.importorskip("Xlib")
    missing = [package for program, package in PROGRAMS.items() if not shutil.which(program)]
    if missing:
        pytest.skip(f"needs packages of the system: {' '.join(missing)}")


def needs_toolkit(name: str) -> None:
    """Skips if the system's Python lacks a toolkit."""
    test, packages = TOOLKITS[name]
    if subprocess.run([PYTHON, "-c", test], capture_output=True).returncode:
        pytest.skip(f"needs packages of the system: {packages}")


def wait_for(what: Callable[[], Any], about: str, patience_s: float = PATIENCE_S) -> Any:
    """Returns what ``what`` returns once that is true."""
    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {patience_s:g} s for {about}")


def _stat(folder: Path) -> list[str]:
    """Returns what Linux says of a process or a thread: its state, parent, group, session, ..."""
    return (folder / "stat").read_text().rpartition(") ")[2].split()


class Desktop:
    """The processes of a desktop, its keyboard and what its screen shows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        for name in ("run", "home"):
            (folder / name).mkdir(mode=0o700)
        reader, writer = os.pipe()
        self._start(
            "Xvfb", "-displayfd", str(writer), "-screen", "0", "1000x700x24", "-nolisten", "tcp",
            pass_fds=[writer],
        )  # fmt: skip
        os.close(writer)
        with os.fdopen(reader) as pipe:
            self.name = f":{pipe.readline().strip()}"
        home = folder / "home"
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(home), "DISPLAY": self.name,
            "XDG_RUNTIME_DIR": str(folder / "run"), "XDG_CONFIG_HOME": str(home / ".config"),
            "XDG_CACHE_HOME": str(home / "cache"), "XDG_STATE_HOME": str(home / "state"),
            "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "GTK_A11Y": "none", "NO_AT_BRIDGE": "1",
            "GTK_IM_MODULE": "ibus", "QT_IM_MODULE": "ibus", "XMODIFIERS": "@im=ibus",
            "IBUS_ENABLE_SYNC_MODE": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        bus = self._start("dbus-daemon", "--session", "--nofork", "--print-address", stdout=-1)
        assert bus.stdout is not None
        self.environment["DBUS_SESSION_BUS_ADDRESS"] = bus.stdout.readline().decode().strip()
        self.start_ibus()
        self._start("openbox")
        from Xlib.display import Display

        self.display = Display(self.name)
        self.root = self.display.screen().root
        self.type_process: subprocess.Popen[bytes] | None = None

    def start_ibus(self) -> None:
        self.ibus = self._start("ibus-daemon", "--xim", "--panel=disable", "--replace")
        wait_for(lambda: b"unix:" in self.output("ibus", "address"), "IBus")

    def output(self, *command: str) -> bytes:
        done = subprocess.run(command, env=self.environment, capture_output=True, timeout=600)
        return done.stdout + done.stderr

    def start_type(self, bundle: Path, *options: str) -> None:
        """Starts `edgedec type` and waits for its model."""
        self._started = bundle, options
        log = self.folder / "type.log"
        with log.open("wb") as file:
            self.type_process = self._start(
                *EDGEDEC, "type", str(bundle), "--threads", "1", *options, stderr=file
            )
        wait_for(lambda: "suggestions come from" in log.read_text(), "the model")

    def start_type_again(self) -> None:
        bundle, options = self._started
        self.start_type(bundle, *options)

    def end_type(self) -> None:
        if self.type_process is not None:
            self.type_process.terminate()
            self.type_process.wait(10)
            self.type_process = None

    def _start(self, *command: str, **options: Any) -> subprocess.Popen[bytes]:
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
        environment = getattr(self, "environment", None)
        process = subprocess.Popen(command, env=environment, start_new_session=True, **options)
        self.processes.append(process)
        return process

    def settle(self) -> None:
        """Waits until none of the desktop's processes has anything left to do."""
        n_still = 0
        end_s = time.monotonic() + PATIENCE_S
        while n_still < N_STILL and time.monotonic() < end_s:
            n_still = 0 if self._is_at_work() else n_still + 1
            time.sleep(0.02)

    def _is_at_work(self) -> bool:
        """Says whether a thread of the desktop runs, or waits for a processor or a disk."""
        sessions = {str(process.pid) for process in self.processes}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if _stat(process)[3] in sessions:
                    states = {_stat(thread)[0] for thread in process.glob("task/*")}
                    if states & {"R", "D"}:
                        return True
        return False

    def key(self, spec: str, pause_s: float = 0.01) -> None:
        """Presses a key as a keyboard does: ``ctrl+Right``, or a character's place."""
        from Xlib import X
        from Xlib.ext import xtest

        *held, name = spec.split("+") if len(spec) > 1 else [spec]
        if len(name) == 1 and (name.isupper() or name in SHIFTED):
            held, name = [*held, "shift"], SHIFTED.get(name, name.lower())
        codes = [PLACES[one] for one in (*held, name)]
        for kind, order in ((X.KeyPress, codes), (X.KeyRelease, codes[::-1])):
            for code in order:
                xtest.fake_input(self.display, kind, code)
            self.display.sync()
        time.sleep(pause_s)

    def type(self, text: str, pause_s: float = 0.01) -> None:
        for character in text:
            self.key(character, pause_s)

    def click(self, x: int, y: int) -> None:
        from Xlib import X
        from Xlib.ext import xtest

        xtest.fake_input(self.display, X.MotionNotify, x=x, y=y)
        for kind in (X.ButtonPress, X.ButtonRelease):
            xtest.fake_input(self.display, kind, 1)
        self.display.sync()
        self.settle()

    def ghost(self) -> str:
        """Returns what the ghost window shows; empty if it is hidden."""
        from Xlib import X
        from Xlib.error import XError

        for window in self.root.query_tree().children:
            with suppress(XError):
                name = window.get_wm_class()
                if name and name[1] == "edgedec-type":
                    if window.get_attributes().map_state != X.IsViewable:
                        return ""
                    title = self.display.intern_atom("_NET_WM_NAME")
                    return window.get_full_property(title, X.AnyPropertyType).value.decode()
        return ""

    def picture(self, path: Path) -> None:
        from PIL import Image

        geometry = self.root.get_geometry()
        from Xlib import X

        shot = self.root.get_image(0, 0, geometry.width, geometry.height, X.ZPixmap, 0xFFFFFFFF)
        size = geometry.width, geometry.height
        Image.frombytes("RGB", size, shot.data, "raw", "BGRX").save(path)

    def close(self) -> None:
        for process in reversed(self.processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class Window:
    """A window with text fields of a toolkit."""

    def __init__(self, desktop: Desktop, toolkit: str) -> None:
        needs_toolkit(toolkit)
        self.desktop, self.toolkit = desktop, toolkit
        self.log = desktop.folder / f"{toolkit}-{time.monotonic_ns()}.jsonl"
        self.process = desktop._start(PYTHON, str(FIELDS), toolkit, str(self.log))
        wait_for(self._is_in_front, f"the window of {toolkit}")
        if toolkit != "vte":
            wait_for(self._takes_keys, f"the field of {toolkit}")
            self.clear()

    def _takes_keys(self) -> bool:
        self.desktop.key("x", 0.2)
        return "x" in self.text()

    def _is_in_front(self) -> bool:
        from Xlib import X

        active = self.desktop.display.intern_atom("_NET_ACTIVE_WINDOW")
        found = self.desktop.root.get_full_property(active, X.AnyPropertyType)
        return found is not None and bool(found.value) and found.value[0] != 0

    def text(self, field: str = "view") -> str:
        rows = [json.loads(line) for line in self.log.read_text().splitlines()]
        texts = [row["text"] for row in rows if row["field"] == field and "text" in row]
        return texts[-1] if texts else ""

    def place(self) -> tuple[int, int]:
        """Returns where the window's content begins on the screen."""
        from Xlib import X

        active = self.desktop.display.intern_atom("_NET_ACTIVE_WINDOW")
        number = self.desktop.root.get_full_property(active, X.AnyPropertyType).value[0]
        window = self.desktop.display.create_resource_object("window", number)
        corner = window.translate_coords(self.desktop.root, 0, 0)
        return -corner.x, -corner.y

    def turn_to(self, field: str) -> None:
        """Clicks at a field, whose middle the program said."""
        x, y = self.place()
        rows = [json.loads(line) for line in self.log.read_text().splitlines()]
        left, top = [row["at"] for row in rows if row["field"] == field and "at" in row][-1]
        self.desktop.click(x + left, y + top)

    def clear(self) -> None:
        for key in ("Escape", "ctrl+a", "BackSpace"):
            self.desktop.key(key)
        wait_for(lambda: not self.text(), f"an empty field of {self.toolkit}")
        self.desktop.settle()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)


class Page(Window):
    """The same fields in a browser. The page's title tells what is in them."""

    def __init__(self, desktop: Desktop, browser: str) -> None:
        command = BROWSERS[browser]
        if not shutil.which(command[0]):
            pytest.skip(f"needs packages of the system: {command[0]}")
        self.desktop, self.toolkit = desktop, browser
        profile = desktop.folder / f"{browser}-profile"
        profile.mkdir(exist_ok=True)
        page = FIELDS.with_suffix(".html").as_uri()
        told = [part.format(profile=profile, page=page) for part in command]
        self.process = desktop._start(*told)
        wait_for(self._told, f"the page in {browser}", 90)
        wait_for(self._takes_keys, f"the field of {browser}")
        self.clear()

    def _told(self) -> dict[str, Any]:
        from Xlib import X

        if not self._is_in_front():
            return {}
        active = self.desktop.display.intern_atom("_NET_ACTIVE_WINDOW")
        number = self.desktop.root.get_full_property(active, X.AnyPropertyType).value[0]
        window = self.desktop.display.create_resource_object("window", number)
        atom = self.desktop.display.intern_atom("_NET_WM_NAME")
        title = window.get_full_property(atom, X.AnyPropertyType)
        text = title.value.decode() if title else ""
        if not text.startswith("{") or " END" not in text:
            return {}
        found: dict[str, Any] = json.loads(text[: text.rindex(" END")])
        return found

    def text(self, field: str = "view") -> str:
        told = self._told()
        return str(told[field]["text"]) if told else ""

    def turn_to(self, field: str) -> None:
        x, y = self.place()
        left, top = self._told()[field]["at"]
        self.desktop.click(x + int(left), y + int(top))


@pytest.fixture(scope="module")
def desktop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desktop]:
    needs_programs()
    found = Desktop(tmp_path_factory.mktemp("desktop"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def suggesting(desktop: Desktop, smollm2_bundle: Path) -> Desktop:
    """The desktop with `edgedec type`."""
    desktop.start_type(smollm2_bundle)
    return desktop


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Windows and keys are for those who ask for them: `make test-desktop`."""
    if "toolkits" not in config.option.markexpr:
        skipping = pytest.mark.skip(reason="run with -m toolkits, as make test-desktop does")
        for item in items:
            if item.get_closest_marker("toolkits"):
                item.add_marker(skipping)
