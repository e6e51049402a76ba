"""Times and bounds of suggestions in every window, on a desktop without a screen.

python -m tests.apps.type.figures BUNDLE

Nothing else should run on the machine. Needs what `make test-desktop` needs for GTK 3.
"""

from __future__ import annotations

import argparse
import json
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .conftest import Desktop, Window, processes_of, wait_for

PASSAGE = (
    "Alice was beginning to get very tired of sitting by her sister on the bank, and of having "
    "nothing to do: once or twice she had peeped into the book her sister was reading, but it had "
    "no pictures or conversations in it. So she was considering in her own mind, as well as she "
    "could, for the hot day made her feel very sleepy and stupid. "
)
"""From Lewis Carroll's book of 1865."""

KEY_S, IDLE_S = 0.2, 30.0
N_CORES = 2
OURS, ITS_OWN = "edgedec", "xkb:us::eng"
"""Engines of IBus; its own hands back each key."""


class GhostWatch:
    """Tells when the ghost's window changes what it shows."""

    def __init__(self, desktop: Desktop) -> None:
        from Xlib import X
        from Xlib.display import Display

        self._display, self._property = Display(desktop.name), X.PropertyNotify
        for window in self._display.screen().root.query_tree().children:
            name = window.get_wm_class()
            if name and name[1] == "edgedec-type":
                window.change_attributes(event_mask=X.PropertyChangeMask)
        self._display.sync()

    def wait(self, end_s: float) -> float | None:
        """Returns when a text is shown, by `time.monotonic`; None if not before ``end_s``."""
        while True:
            while self._display.pending_events():
                if self._display.next_event().type == self._property:
                    return time.monotonic()
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return None
            select.select([self._display], [], [], left_s)

    def forget(self) -> None:
        while self._display.pending_events():
            self._display.next_event()


def key_to_ghost(desktop: Desktop, text: str) -> tuple[list[float], list[float]]:
    """Returns milliseconds to suggestions where none was, and to shorter ones."""
    watch, new, shorter = GhostWatch(desktop), list[float](), list[float]()
    for character in text:
        had = desktop.ghost()
        watch.forget()
        start_s = time.monotonic()
        desktop.key(character, 0)
        shown_s = watch.wait(start_s + KEY_S)
        if shown_s is not None:
            is_shorter = had[:1] == character and len(had) > 1
            (shorter if is_shorter else new).append(1000 * (shown_s - start_s))
        time.sleep(max(0.0, start_s + KEY_S - time.monotonic()))
    return new, shorter


def key_to_text(window: Window) -> list[float]:
    """Returns milliseconds from each key to the change of the application's text."""
    rows = window.log.read_text().count("\n")
    pressed = []
    for character in PASSAGE:
        pressed.append(time.monotonic())
        window.desktop.key(character, KEY_S / 2)
    wait_for(lambda: window.text().endswith(PASSAGE), "the passage")
    changes = [json.loads(line) for line in window.log.read_text().splitlines()[rows:]]
    changed = [row["s"] for row in changes if row.get("field") == "view" and "s" in row]
    return [1000 * (c - p) for p, c in zip(pressed, changed, strict=True)]


@contextmanager
def busy_cores() -> Iterator[None]:
    """Has programs of another session compute: Linux shares the cores between sessions first."""
    command = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(command, start_new_session=True) for _ in range(N_CORES)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


def choose_engine(desktop: Desktop, engine: str) -> None:
    desktop.output("ibus", "engine", engine)
    wait_for(lambda: desktop.output("ibus", "engine").decode().strip() == engine, engine)


def added_delay(desktop: Desktop, window: Window) -> dict[str, list[float]]:
    """Returns milliseconds from key to text while the cores are busy: with us, and without."""
    plain = Window(desktop, "gtk3", GTK_IM_MODULE="gtk-im-context-simple")
    ways = {"edgedec": (window, OURS), "IBus alone": (window, ITS_OWN), "no IBus": (plain, OURS)}
    delays: dict[str, list[float]] = {name: [] for name in ways}
    with busy_cores():
        for name in list(ways) * 2:
            used_window, engine = ways[name]
            choose_engine(desktop, engine)
            desktop.activate(used_window.number)
            wait_for(lambda used_window=used_window: desktop.front() == used_window.number, name)
            used_window.clear()
            delays[name] += key_to_text(used_window)
    choose_engine(desktop, OURS)
    return delays


def used(desktop: Desktop) -> tuple[float, float, float]:
    """Returns seconds of processor, and MB of memory: shared parts in part, and in whole."""
    assert desktop.type_process is not None
    cpu_s = pss = rss = 0.0
    for folder in processes_of({desktop.type_process.pid}):
        fields = (folder / "stat").read_text().rpartition(") ")[2].split()
        cpu_s += (int(fields[11]) + int(fields[12])) / 100
        lines = (folder / "smaps_rollup").read_text().splitlines()
        sizes = {line.split()[0]: line.split()[1] for line in lines[1:]}
        pss, rss = pss + int(sizes["Pss:"]) / 1e3, rss + int(sizes["Rss:"]) / 1e3
    return cpu_s, pss * 1.024, rss * 1.024


def percentiles(values: list[float]) -> str:
    """Returns p50 and p95 in words."""
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    return f"p50 {cuts[9]:.1f} ms, p95 {cuts[18]:.1f} ms ({len(values)} keys)"


def print_delays(desktop: Desktop, window: Window) -> None:
    window.clear()
    new, shorter = key_to_ghost(desktop, PASSAGE)
    print(f"key to a new suggestion: {percentiles(new)}")
    print(f"key that shortens one: {percentiles(shorter)}")
    print(f"both: {percentiles(new + shorter)}")
    for engine, delays in added_delay(desktop, window).items():
        print(f"key to text, {N_CORES} cores busy, {engine}: {percentiles(delays)}")


def print_idle(desktop: Desktop) -> None:
    desktop.settle()
    before_s, *_ = used(desktop)
    time.sleep(IDLE_S)
    after_s, pss, rss = used(desktop)
    print(f"idle: {(after_s - before_s) / IDLE_S:.2%} of a core")
    print(f"memory: {pss:.0f} MB; with all of what others share, {rss:.0f} MB")


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument(
        "--idle", action="store_true", help="what it takes while nobody types, only"
    )
    options = parser.parse_args()
    bundle = options.bundle.absolute()
    with tempfile.TemporaryDirectory() as folder:
        desktop = Desktop(Path(folder))
        try:
            del desktop.environment["OMP_NUM_THREADS"]
            desktop.start_type(bundle)
            window = Window(desktop, "gtk3")
            key_to_ghost(desktop, PASSAGE[:80])  # once for caches and files
            if not options.idle:
                print_delays(desktop, window)
            print_idle(desktop)
        finally:
            desktop.close()


if __name__ == "__main__":
    main()
