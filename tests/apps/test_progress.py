"""Progress of long work, on a terminal and in files."""

from __future__ import annotations

import io
import re
from itertools import count

import pytest

from edgedec.apps.console import consoles, progress
from edgedec.apps.console.progress import ProgressBars, count_amount


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clock shows, in its only place."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_what_changes_all_the_time_is_one_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Terminal()
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setattr(consoles.err, "is_interactive", True)
    with ProgressBars(count_amount) as bars:
        for step in range(1, 5):
            bars.report("train", step, 4, f"loss {9 - step}.25")
    drawn = stderr.getvalue()
    assert "4 of 4, loss 5.25" in drawn
    assert drawn.count("\n") == 1  # when it ends; bars are lines of their own


@pytest.mark.parametrize("first", [[], ["train ..."]])
def test_a_file_has_a_line_a_minute(
    first: list[str], seconds: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with ProgressBars(count_amount, has_lines=bool(first)) as bars:
        for step in range(1, 201):
            seconds[0] += 1.0
            bars.report("train", step, 200, f"loss {step}")
    lines = capsys.readouterr().err.splitlines()
    reported = [re.sub(r"\d+", "N", line) for line in lines]
    unit = ["min", "min", "s", "s"]
    assert reported == [*first, *(f"train: N of N, loss N, about N {u} left" for u in unit)]


def test_phases_without_an_end_are_reported_by_name(
    seconds: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with ProgressBars(count_amount) as bars:
        for done in count():
            bars.report("walk", done, 0)
            seconds[0] += 25.0
            if done == 6:
                break
    assert capsys.readouterr().err.splitlines() == ["walk ..."] * 2


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize("n_cached", [0, 300])
def test_after_a_second_the_time_left_is_shown(
    is_terminal: bool,
    n_cached: int,
    seconds: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tokens that the KV cache held took no time, and do not count as speed."""
    stderr = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setattr(consoles.err, "is_interactive", is_terminal)
    drawn = []
    with ProgressBars(count_amount) as bars:
        for n_read in range(n_cached + 10, n_cached + 60, 10):
            bars.report("prefill", n_read, 1000)
            seconds[0] += 0.25
            if bars._progress is not None:
                bars._progress.refresh()
            drawn.append("left" in stderr.getvalue())
    assert drawn == [False] * 4 + [True]
    left_s = (1000 - n_cached - 50) / 40
    assert f"prefill: {n_cached + 50} of 1000, about {left_s:.0f} s left" in re.sub(
        r"\W*prefill\W*(\d)", r"prefill: \1", stderr.getvalue()
    )


@pytest.mark.parametrize(
    ("seconds_left", "text"),
    [(0.2, "1 s"), (34.4, "34 s"), (99, "99 s"), (100, "2 min"), (5900, "98 min"), (9000, "2.5 h")],
)
def test_durations_are_short(seconds_left: float, text: str) -> None:
    assert progress.duration_text(seconds_left) == text
