"""A desktop of our own: an X server without a screen, a session bus, IBus, and real keys."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from PIL.Image import Image

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
        "--user-data-dir={profile}", "--force-device-scale-factor={scale}", "--app={page}",
    ),
    "firefox": ("firefox-esr", "--new-instance", "--profile", "{profile}", "--kiosk", "{page}"),
}  # fmt: skip
"""Browser -> its command, whose program has the name of Debian's package."""

NO_NOTICES = (
    'user_pref("datareporting.policy.dataSubmissionPolicyBypassNotification", true);\n'
    'user_pref("browser.shell.checkDefaultBrowser", false);\n'
    'user_pref("browser.aboutwelcome.enabled", false);\n'
)
"""Of Firefox, which show up some seconds after its start and push the text down."""

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
    """Returns what ``what`` returns once it is true. A machine that stands still is no delay."""
    left_s, then_s = patience_s, time.monotonic()
    while left_s > 0:
        if found := what():
            return found
        time.sleep(0.02)
        now_s = time.monotonic()
        left_s -= min(now_s - then_s, 1.0)
        then_s = now_s
    raise AssertionError(f"waited {patience_s:g} s for {about}")


def wait_for_end(process: subprocess.Popen[bytes]) -> None:
    wait_for(lambda: process.poll() is not None, f"the end of {process.args}")


def _stat(folder: Path) -> list[str]:
    """Returns what Linux says of a process or a thread: its state, parent, group, session, ..."""
    return (folder / "stat").read_text().rpartition(") ")[2].split()


def processes_of(sessions: Collection[int]) -> Iterator[Path]:
    """Yields folders of /proc of processes that belong to some sessions."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int(_stat(process)[3]) in sessions:
                yield process


def _child_of(number: int) -> int:
    """Returns the number of a process's child; 0 if it has none."""
    children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
    return int(children[0]) if children else 0


class Session:
    """The processes of a desktop, and `edgedec type` among them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.type_process: subprocess.Popen[bytes] | None = None
        for name in ("run", "home"):
            (folder / name).mkdir(mode=0o700)
        home = folder / "home"
        self.environment = {
            "PATH": os.environ["PATH"], "HOME": str(home), "XDG_RUNTIME_DIR": str(folder / "run"),
            "XDG_CONFIG_HOME": str(home / ".config"), "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_STATE_HOME": str(home / "state"), "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8",
            "GTK_A11Y": "none", "NO_AT_BRIDGE": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self.environment["DBUS_SESSION_BUS_ADDRESS"] = self.start_bus()

    def start_bus(self) -> str:
        """Returns the address of a new D-Bus."""
        bus = self.start("dbus-daemon", "--session", "--nofork", "--print-address", stdout=-1)
        assert bus.stdout is not None
        return bus.stdout.readline().decode().strip()

    def output(self, *command: str) -> bytes:
        done = subprocess.run(command, env=self.environment, capture_output=True, timeout=600)
        return done.stdout + done.stderr

    def start_type(self, bundle: Path, *options: str) -> None:
        """Starts `edgedec type` and waits for its model."""
        self._started = bundle, options
        self._n_models = 0
        with self._log().open("wb") as file:
            self.type_process = self.start(*EDGEDEC, "type", str(bundle), *options, stderr=file)
        self.wait_for_model()

    def wait_for_model(self) -> None:
        """Waits until a model has been loaded since the latest one."""

        def is_loaded() -> bool:
            return self._log().read_text().count("suggestions come from") > self._n_models

        wait_for(is_loaded, "the model")
        self._n_models += 1

    def _log(self) -> Path:
        return self.folder / "type.log"

    def start_type_again(self) -> None:
        """Starts it again if it ended, or waits until it has started what ended."""
        bundle, options = self._started
        if self.type_process is not None and self.type_process.poll() is None:
            self.wait_for_model()
        else:
            self.start_type(bundle, *options)

    def part_of_type(self, part: str) -> int:
        """Returns the number of a process of `edgedec type`: "guard", "answering" or "model"."""
        assert self.type_process is not None
        number = self.type_process.pid
        for _ in range(("guard", "answering", "model").index(part)):
            number = wait_for(lambda number=number: _child_of(number), f"the process: {part}")
        return int(number)

    def kill_type(self, part: str, number: int = signal.SIGKILL) -> None:
        """Sends a signal to a process of `edgedec type`; the guard's end is waited for."""
        os.kill(self.part_of_type(part), number)
        if part == "guard" and number in (signal.SIGKILL, signal.SIGTERM):
            assert self.type_process is not None
            wait_for_end(self.type_process)

    def end_type(self) -> None:
        if self.type_process is not None:
            self.type_process.terminate()
            wait_for_end(self.type_process)
            self.type_process = None

    def start(
        self, *command: str, environment: dict[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
        environment = environment or self.environment
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
        for process in processes_of({process.pid for process in self.processes}):
            with suppress(OSError):
                if {_stat(thread)[0] for thread in process.glob("task/*")} & {"R", "D"}:
                    return True
        return False

    def close(self) -> None:
        for process in reversed(self.processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class Desktop(Session):
    """An X server with a window manager and IBus: its keyboard and what its screen shows."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        reader, writer = os.pipe()
        self.start(
            "Xvfb", "-displayfd", str(writer), "-screen", "0", "1000x700x24",
            "-nolisten", "tcp", "-r",
            pass_fds=[writer],
        )  # fmt: skip
        os.close(writer)
        with os.fdopen(reader) as pipe:
            self.name = f":{pipe.readline().strip()}"
        self.environment |= {
            "DISPLAY": self.name, "GTK_IM_MODULE": "ibus", "QT_IM_MODULE": "ibus",
            "XMODIFIERS": "@im=ibus",
        }  # fmt: skip
        self.start_ibus()
        self.start("openbox")
        from Xlib.display import Display

        self.display = Display(self.name)
        self.root = self.display.screen().root

    def start_ibus(self) -> None:
        self.ibus = self.start("ibus-daemon", "--xim", "--panel=disable", "--replace")
        wait_for(lambda: b"unix:" in self.output("ibus", "address"), "IBus")

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
        window = self._ghost_window()
        return self.title(window.id) if window else ""

    def ghost_box(self) -> tuple[int, int, int, int]:
        """Returns the ghost window's left, top, width and height on the screen."""
        geometry = self._ghost_window().get_geometry()
        return geometry.x, geometry.y, geometry.width, geometry.height

    def _ghost_window(self) -> Any:
        """Returns the ghost's window; None if it is hidden."""
        from Xlib import X
        from Xlib.error import XError

        for window in self.root.query_tree().children:
            with suppress(XError):
                name = window.get_wm_class()
                if name and name[1] == "edgedec-type":
                    return window if window.get_attributes().map_state == X.IsViewable else None
        return None

    def front(self) -> int:
        """Returns the number of the window in front; 0 if there is none."""
        value = self._property(self.root.id, "_NET_ACTIVE_WINDOW")
        return int(value[0]) if value else 0

    def activate(self, number: int) -> None:
        """Asks the window manager to bring a window to the front."""
        from Xlib import X
        from Xlib.protocol.event import ClientMessage

        window = self.display.create_resource_object("window", number)
        kind, by_a_task_bar = self.display.intern_atom("_NET_ACTIVE_WINDOW"), 2
        message = ClientMessage(
            window=window, client_type=kind, data=(32, [by_a_task_bar, 0, 0, 0, 0])
        )
        mask = X.SubstructureRedirectMask | X.SubstructureNotifyMask
        self.root.send_event(message, event_mask=mask)
        self.display.sync()

    def title(self, number: int) -> str:
        """Returns a window's title; empty if it has none, or there is no such window."""
        value = self._property(number, "_NET_WM_NAME")
        return bytes(value).decode() if value else ""

    def session_of(self, number: int) -> int:
        """Returns the session of processes that a window belongs to; 0 if there is none."""
        value = self._property(number, "_NET_WM_PID")
        with suppress(OSError):
            return int(_stat(Path("/proc", str(value[0])))[3]) if value else 0
        return 0

    def _property(self, number: int, name: str) -> Any:
        """Returns a property of a window; None if it has none, or there is no such window."""
        from Xlib import X
        from Xlib.error import XError

        from edgedec.apps.type.x11.front_window import AT_ONCE

        atom = self.display.intern_atom(name)
        window = self.display.create_resource_object("window", number)
        with suppress(XError):
            found = window.get_full_property(atom, X.AnyPropertyType, AT_ONCE)
            return found.value if found is not None else None
        return None

    def picture(self) -> Image:
        """Returns what the screen shows."""
        from PIL import Image
        from Xlib import X

        geometry = self.root.get_geometry()
        shot = self.root.get_image(0, 0, geometry.width, geometry.height, X.ZPixmap, 0xFFFFFFFF)
        size = geometry.width, geometry.height
        return Image.frombytes("RGB", size, shot.data, "raw", "BGRX")


class Window:
    """A window with text fields of a toolkit. number: X11's."""

    def __init__(self, desktop: Desktop, toolkit: str, scale: int = 1, **environment: str) -> None:
        needs_toolkit(toolkit)
        self.desktop, self.toolkit, self._environment = desktop, toolkit, environment
        self.log = desktop.folder / f"{toolkit}-{time.monotonic_ns()}.jsonl"
        self.log.touch()
        self._start([PYTHON, str(FIELDS), toolkit, str(self.log)], scale)
        if toolkit != "vte":
            self._wait_for_keys()

    def _start(self, command: Sequence[str], scale: int) -> None:
        environment = self.desktop.environment | {
            "GDK_SCALE": str(scale), "QT_SCALE_FACTOR": str(scale)
        }  # fmt: skip
        if self.toolkit in ("gtk4", "qt5", "qt6", "firefox"):
            environment["IBUS_ENABLE_SYNC_MODE"] = "1"  # as `--install` sets it for all programs
        environment |= self._environment
        self.process = self.desktop.start(*command, environment=environment)
        self.number = 0

        def is_shown() -> bool:
            self.number = self.desktop.front()
            return self.desktop.session_of(self.number) == self.process.pid and self._is_ready()

        wait_for(is_shown, f"the window of {self.toolkit}", 2 * PATIENCE_S)

    def _is_ready(self) -> bool:
        return True

    def _wait_for_keys(self) -> None:
        def takes_keys() -> bool:
            self.desktop.key("x", 0.2)
            return "x" in self.text()

        wait_for(takes_keys, f"the field of {self.toolkit}")
        self.clear()

    def text(self, field: str = "view") -> str:
        texts = [row["text"] for row in self._rows(field) if "text" in row]
        return str(texts[-1]) if texts else ""

    def place_of(self, field: str) -> tuple[int, int]:
        """Returns a place in a field. Units: pixels of the window."""
        left, top = [row["at"] for row in self._rows(field) if "at" in row][-1]
        return int(left), int(top)

    def _rows(self, field: str) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [row for row in rows if row["field"] == field]

    def place(self) -> tuple[int, int]:
        """Returns where the window's content begins on the screen."""
        window = self.desktop.display.create_resource_object("window", self.number)
        corner = window.translate_coords(self.desktop.root, 0, 0)
        return -corner.x, -corner.y

    def turn_to(self, field: str, right: int = 0, down: int = 0) -> None:
        """Clicks at a field."""
        (x, y), (left, top) = self.place(), self.place_of(field)
        self.desktop.click(x + left + right, y + top + down)

    def clear(self, field: str = "view") -> None:
        for key in ("Escape", "ctrl+a", "BackSpace"):
            self.desktop.key(key)
        wait_for(lambda: not self.text(field), f"an empty field of {self.toolkit}")
        self.desktop.settle()

    def close(self) -> None:
        self.process.terminate()
        self._wait_for_end()

    def kill(self) -> None:
        """Ends an application that may not listen any more, and all that it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self._wait_for_end()

    def _wait_for_end(self) -> None:
        wait_for_end(self.process)
        wait_for(lambda: not self.desktop.session_of(self.number), f"the end of {self.toolkit}")


class Page(Window):
    """The same fields in a browser. The page's title tells what is in them."""

    def __init__(self, desktop: Desktop, browser: str, scale: int = 1) -> None:
        command = BROWSERS[browser]
        if not shutil.which(command[0]):
            pytest.skip(f"needs packages of the system: {command[0]}")
        self.desktop, self.toolkit, self._environment = desktop, browser, dict[str, str]()
        self._places: dict[str, list[int]] = {}
        profile = tempfile.mkdtemp(prefix=browser, dir=desktop.folder)  # another window may be open
        if browser == "firefox":
            Path(profile, "user.js").write_text(NO_NOTICES)
        page = FIELDS.with_suffix(".html").as_uri()
        filled_in = [part.format(profile=profile, page=page, scale=scale) for part in command]
        self._start(filled_in, scale)
        self._wait_for_keys()

    def _is_ready(self) -> bool:
        return bool(self._told())

    def _told(self) -> list[dict[str, Any]]:
        """Returns the texts of the fields, and their places unless the texts are long."""
        text = self.desktop.title(self.number)
        if not text.startswith("[") or " END" not in text:
            return []
        with suppress(json.JSONDecodeError):  # a title that was read while it changed
            told: list[dict[str, Any]] = json.loads(text[: text.rindex(" END")])
            self._places = told[1] if len(told) > 1 else self._places
            return told
        return []

    def text(self, field: str = "view") -> str:
        told = self._told()
        return str(told[0].get(field, "")) if told else ""

    def place_of(self, field: str) -> tuple[int, int]:
        self._told()
        left, top = self._places[field]
        return int(left), int(top)


@pytest.fixture(scope="module")
def desktop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desktop]:
    needs_programs()
    found = Desktop(tmp_path_factory.mktemp("desktop"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def suggesting(desktop: Desktop, smollm2_bundle: Path) -> Desktop:
    """The desktop with `edgedec type`."""
    desktop.start_type(smollm2_bundle, "--threads", "1")
    return desktop


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Windows and keys are for those who ask for them: `make test-desktop`."""
    if "toolkits" not in config.option.markexpr:
        skipping = pytest.mark.skip(reason="run with -m toolkits, as make test-desktop does")
        for item in items:
            if item.get_closest_marker("toolkits"):
                item.add_marker(skipping)
