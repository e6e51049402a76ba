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
    assert reported == [*first, *["train: N of N, loss N"] * 3]


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
