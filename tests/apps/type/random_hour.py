"""Types, clicks, switches windows and kills `edgedec type` at random; texts must be as without it.

python -m tests.apps.type.random_hour BUNDLE [--seconds 3600] [--log FILE]

Each seed is an episode in three applications, first without `edgedec type`, then with it. It has
no key that takes a suggestion. Every difference is printed, and an application that takes no key
any more is one if `edgedec type` runs. If it does not run, the episode is thrown away and counted.
Fresh applications follow either. With --log it goes on with the seed after the last one in FILE,
and a picture of the screen at that moment lies beside it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from .conftest import BROWSERS, Desktop, Page, Window, wait_for

_PHRASES = (
    "The capital of France is Par", "Thank you for your ", "I am looking forward to hear",
    "Once upon a ti", "The President of the United Sta", "at the end of the d", "for the first ti",
    "as soon as pos", "We hold these truths to be self-ev", "It is one of the most imp",
)  # fmt: skip
"""Beginnings that models suggest an end for."""

_OTHER = (
    "BackSpace", "Left", "Right", "Home", "End", "Delete", "Escape", "X", ".", "shift+Left", "\n",
)  # fmt: skip
_LAST = "~"
"""Ends a burst and is removed again: all keys before it are in the text once it is."""

_N_BURSTS, _N_KEYS = 8, 60
_PAUSES_S = (0.0, 0.01, 0.03, 0.08)
_PARTS = ("guard", "answering", "model")


@dataclass(frozen=True)
class Burst:
    """Keys into one field.

    click: pixels right of and below a place in the field; None: no click before the keys.
    killed_at: the key before which a process of ours is killed, ``part``; -1: none.
    lingers_s: wait behind the keys, in which suggestions come up.
    """

    window: int
    field: str
    click: tuple[int, int] | None
    keys: tuple[tuple[str, float], ...]
    killed_at: int
    part: str
    lingers_s: float


@dataclass
class Counts:
    """What happened in an episode.

    ghosts: keys and ends of bursts that saw a suggestion. thrown_away: 1 if an application took no
    key any more without us.
    """

    seed: int
    keys: int = 0
    clicks: int = 0
    switches: int = 0
    kills: int = 0
    ghosts: int = 0
    differences: int = 0
    thrown_away: int = 0
    seconds: float = 0.0


def bursts_of(seed: int, n_windows: int) -> list[Burst]:
    """Returns an episode."""
    rng, window, field = random.Random(seed), 0, "view"
    bursts = []
    for i in range(_N_BURSTS):
        click = None
        if i == 0 or rng.random() < 0.6:
            window = rng.randrange(n_windows)
            field = "view" if rng.random() < 0.75 else "entry"
            click = (
                (rng.randrange(200), rng.randrange(40))
                if field == "view"
                else (rng.randrange(120), 0)
            )
        keys: list[tuple[str, float]] = []
        while len(keys) < _N_KEYS:
            pause_s = rng.choice(_PAUSES_S)
            text = rng.choice(_PHRASES) + " " if rng.random() < 0.3 else [rng.choice(_OTHER)]
            keys += [(key, pause_s) for key in text]
        killed_at = rng.randrange(_N_KEYS) if rng.random() < 0.3 else -1
        lingers_s = rng.choice((0.0, 0.0, 0.3, 0.8))
        last = [(key, 0.01) for key in ". " + rng.choice(_PHRASES)]
        keys = keys[: _N_KEYS - len(last)] + last
        part = rng.choice(_PARTS)
        bursts.append(Burst(window, field, click, tuple(keys), killed_at, part, lingers_s))
    return bursts


class Episodes:
    """Three applications on one desktop."""

    def __init__(self, desktop: Desktop, bundle: Path, applications: list[str]) -> None:
        self._desktop, self._bundle, self._applications = desktop, bundle, applications
        self.windows = self._open()

    def compare(self, bursts: list[Burst], counts: Counts, picture: Path | None) -> None:
        """Plays an episode without us and with us; counts differences.

        picture: file for the screen if an application takes no key any more.
        """
        without = self._played(bursts, False, Counts(counts.seed), picture)
        if without is None:
            counts.thrown_away = 1
            return
        with_us = self._played(bursts, True, counts, picture)
        counts.differences = differences(bursts, without, with_us) if with_us else 1

    def _played(
        self, bursts: list[Burst], is_suggesting: bool, counts: Counts, picture: Path | None
    ) -> list[list[str]] | None:
        """Returns what `play` does; None, and applications are fresh ones, if keys are lost."""
        try:
            return self.play(bursts, is_suggesting, counts)
        except AssertionError as error:
            print(f"{error}; with us: {is_suggesting}", flush=True)
        if picture:
            self._desktop.picture().save(picture)
        for window in self.windows:
            window.kill()
        self.windows = self._open()
        return None

    def _open(self) -> list[Window]:
        return [
            (Page if name in BROWSERS else Window)(self._desktop, name)
            for name in self._applications
        ]

    def play(self, bursts: list[Burst], is_suggesting: bool, counts: Counts) -> list[list[str]]:
        """Returns the texts of all fields after each burst."""
        desktop = self._desktop
        self._clear()
        if is_suggesting:
            desktop.start_type(self._bundle, "--threads", "1")
        try:
            texts, fields = [], dict.fromkeys(range(len(self.windows)), "view")
            for burst in bursts:
                if burst.click is not None:
                    counts.switches += desktop.front() != self.windows[burst.window].number
                    counts.clicks += 1
                    fields[burst.window] = burst.field
                self._play_burst(burst, fields[burst.window], is_suggesting, counts)
                texts.append(self.texts())
        finally:
            desktop.end_type()
        return texts

    def texts(self) -> list[str]:
        return [window.text(field) for window in self.windows for field in ("view", "entry")]

    def _clear(self) -> None:
        for window in self.windows:
            self._raise(window)
            for field in ("entry", "view"):
                window.turn_to(field)
                window.clear(field)

    def _raise(self, window: Window) -> None:
        """Brings a window to the front as a task bar does."""
        self._desktop.activate(window.number)
        wait_for(lambda: self._desktop.front() == window.number, f"{window.toolkit} in front")

    def _play_burst(self, burst: Burst, field: str, is_suggesting: bool, counts: Counts) -> None:
        desktop, window = self._desktop, self.windows[burst.window]
        if burst.click is not None:
            self._raise(window)
            window.turn_to(field, *burst.click)
        for i, (key, pause_s) in enumerate(burst.keys):
            if i == burst.killed_at and is_suggesting and desktop.type_process is not None:
                desktop.kill_type(burst.part)
                counts.kills += 1
            desktop.key(key, pause_s)
            counts.ghosts += is_suggesting and pause_s > 0 and bool(desktop.ghost())
        counts.keys += len(burst.keys)
        time.sleep(burst.lingers_s)
        counts.ghosts += is_suggesting and bool(desktop.ghost())
        self._end_burst(window, field)
        if is_suggesting and burst.killed_at >= 0:
            desktop.start_type_again()

    def _end_burst(self, window: Window, field: str) -> None:
        self._desktop.key(_LAST)
        wait_for(lambda: _LAST in window.text(field), f"the last key in {window.toolkit}")
        self._desktop.key("BackSpace")
        wait_for(lambda: _LAST not in window.text(field), f"BackSpace in {window.toolkit}")


def differences(bursts: list[Burst], without: list[list[str]], with_us: list[list[str]]) -> int:
    """Prints the first difference; returns how many bursts ended in one."""
    different = [
        i
        for i, pair in enumerate(zip(without, with_us, strict=True))
        if len(set(map(tuple, pair))) > 1
    ]
    if different:
        first = different[0]
        print(f"burst {first}: {json.dumps(asdict(bursts[first]))}")
        print(f"without: {without[first]}\nwith:    {with_us[first]}", flush=True)
    return len(different)


def next_seed(log: Path | None) -> int:
    """Returns the seed after the last one in a log."""
    if log is None or not log.exists():
        return 0
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return max((row["seed"] for row in rows), default=-1) + 1


def main() -> None:
    """Plays episodes; ends with 1 if a text was different."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, help="the first one")
    parser.add_argument("--log", type=Path)
    parser.add_argument("--applications", nargs="+", default=["gtk3", "qt6", "chromium"])
    options = parser.parse_args()
    seed = next_seed(options.log) if options.seed is None else options.seed
    n_different = 0
    with tempfile.TemporaryDirectory() as folder:
        desktop = Desktop(Path(folder))
        try:
            episodes = Episodes(desktop, options.bundle.absolute(), options.applications)
            start_s = time.monotonic()
            while time.monotonic() - start_s < options.seconds:
                bursts, began_s = bursts_of(seed, len(episodes.windows)), time.monotonic()
                counts = Counts(seed)
                picture = options.log and options.log.with_suffix(f".{seed}.png")
                episodes.compare(bursts, counts, picture)
                counts.seconds = round(time.monotonic() - began_s, 1)
                n_different += counts.differences
                line = json.dumps(asdict(counts))
                print(line, flush=True)
                if options.log:
                    with options.log.open("a") as log:
                        log.write(line + "\n")
                seed += 1
        finally:
            desktop.close()
    sys.exit(n_different > 0)


if __name__ == "__main__":
    main()
