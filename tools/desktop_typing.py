"""Types into the window of `edgedec desktop` and tells how long its interface was busy.

python tools/desktop_typing.py code.edgedec

The file is a program, with syntax colours and line numbers. Without a screen, set
QT_QPA_PLATFORM=offscreen; fonts are those of the machine. With --causes, on Linux, each gap that is
too long is followed by what it went into, and by what all threads were at.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import QEventLoop, Qt, QTimer
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from edgedec.apps.desktop.program import collect_here
from edgedec.apps.desktop.recovery import Recovery
from edgedec.apps.desktop.settings import EditorSettings, SettingsFile
from edgedec.apps.desktop.window import EditorWindow

_BEAT_MS, _REST_MS = 2, 1000
_TOO_LONG_MS = 16
_COUNTERS = "own work", "of it garbage", "waiting for a processor", "stolen from the machine"
PASSAGE = Path(__file__).parents[1] / "autocomplete" / "answer.py"


class Pulse:
    """A timer in the event loop; gaps_ms: between its beats. causes: of those too long."""

    def __init__(self, has_causes: bool = False) -> None:
        self.gaps_ms: list[float] = []
        self.causes: list[str] = []
        self._watch = Watch() if has_causes else None
        self._last_s = time.perf_counter()
        self._timer = QTimer(interval=_BEAT_MS, timerType=Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._beat)
        self._timer.start()

    def report(self) -> str:
        """Returns what was seen in words, and what went into gaps that were too long."""
        n_long = sum(gap_ms > _TOO_LONG_MS for gap_ms in self.gaps_ms)
        report = (
            f"between beats of {_BEAT_MS} ms: {summary(self.gaps_ms)}; {n_long} of more than 16 ms"
        )
        return "\n".join([report, *self.causes])

    def end(self) -> None:
        """Looks no more."""
        self._timer.stop()
        faulthandler.cancel_dump_traceback_later()

    def _beat(self) -> None:
        now_s = time.perf_counter()
        self.gaps_ms.append(1000 * (now_s - self._last_s))
        if self._watch is not None:
            self.causes += self._watch.since(self.gaps_ms[-1])
            now_s = time.perf_counter()  # what looking took is no part of a gap
        self._last_s = now_s


class Watch:
    """Tells what the time of the interface's thread goes into, by the system's own counters.

    Python's lock is waited for in the rest that is neither its own work, nor a wait for a
    processor, nor time that the machine itself did not have. `faulthandler` looks at threads
    without that lock.
    """

    def __init__(self) -> None:
        self._waits = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._stacks = os.memfd_create("stacks")
        self._collected_s = self._collecting_s = 0.0
        gc.callbacks.append(self._on_collection)
        self._last = self._counters()

    def since(self, gap_ms: float) -> list[str]:
        """Returns what a gap that ends now went into, if it was too long; begins another."""
        faulthandler.cancel_dump_traceback_later()
        gaps = []
        if gap_ms > _TOO_LONG_MS:
            pairs = zip(_COUNTERS, self._last, self._counters(), strict=True)
            parts = (f"{name} {1000 * (now - last):.1f}" for name, last, now in pairs)
            stacks = os.pread(self._stacks, 1 << 20, 0).decode()
            gaps.append(f"{gap_ms:.1f} ms: {', '.join(parts)}\n{stacks}")
        os.ftruncate(self._stacks, 0)
        os.lseek(self._stacks, 0, os.SEEK_SET)
        self._last = self._counters()
        faulthandler.dump_traceback_later(_TOO_LONG_MS / 1000, file=self._stacks)
        return gaps

    def _counters(self) -> tuple[float, ...]:
        waited_s = int(self._waits.read_text().split()[1]) / 1e9
        stolen_s = int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")
        return time.thread_time(), self._collected_s, waited_s, stolen_s

    def _on_collection(self, phase: str, _: dict[str, int]) -> None:
        now_s = time.perf_counter()
        if phase == "start":
            self._collecting_s = now_s
        else:
            self._collected_s += now_s - self._collecting_s


def run_for(ms: int) -> None:
    """Lets the interface go on for a while."""
    loop = QEventLoop()
    QTimer.singleShot(ms, loop.quit)
    loop.exec()


def summary(values: list[float]) -> str:
    """Returns percentiles in words."""
    ordered = sorted(values)
    p50, p99, p999 = (ordered[int(len(ordered) * share)] for share in (0.5, 0.99, 0.999))
    return f"p50 {p50:.1f}, p99 {p99:.1f}, p99.9 {p999:.1f}, most {ordered[-1]:.1f} ms"


def open_window(theme: str, folder: Path, recovery: Recovery) -> EditorWindow:
    """Returns a window that has no model yet and remembers nothing."""
    settings = EditorSettings(theme=theme, has_colours=True)
    window = EditorWindow(settings, SettingsFile(folder), recovery)
    window.new()
    window.show()
    return window


def main() -> None:
    """Types and measures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--keys", type=int, default=150)
    parser.add_argument("--interval-ms", type=int, default=120)
    parser.add_argument("--theme", default="dark")
    parser.add_argument("--causes", action="store_true")
    options = parser.parse_args()
    application = QApplication([])
    with tempfile.TemporaryDirectory() as folder:
        text = PASSAGE.read_text(encoding="utf-8")
        at = text.index("    def follow(")
        file = Path(folder) / "answer.py"
        file.write_text(text[:at], encoding="utf-8")
        recovery = Recovery(Path(folder))
        collect_here(application)
        window = open_window(options.theme, Path(folder), recovery)
        run_for(_REST_MS)  # what a new window does first
        pulse = Pulse(options.causes)
        window.follow(replace(window.settings, bundle=str(options.bundle.absolute())))
        while window.suggester.completer is None:
            run_for(20)
        print(f"while a model is loaded, {pulse.report()}")
        pulse.end()
        window.open([file])
        edit = window.current
        assert edit is not None
        edit.moveCursor(edit.textCursor().MoveOperation.End)
        run_for(_REST_MS)
        pulse, keys_ms = Pulse(options.causes), []
        for key in text[at : at + options.keys]:
            started_s = time.perf_counter()
            edit.insertPlainText(key) if key == "\n" else QTest.keyClick(edit, key)
            keys_ms.append(1000 * (time.perf_counter() - started_s))
            run_for(options.interval_ms)
        print(f"a key: {summary(keys_ms)}")
        print(f"while it is typed, {pulse.report()}")
        pulse.end()
        edit.document().setModified(False)
        window.close()
        recovery.close()
    application.processEvents()


if __name__ == "__main__":
    main()
