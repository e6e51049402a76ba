"""The picture of `edgedec eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

plot = pytest.importorskip("edgedec.apps.evaluation.plot", reason="needs the extra plots")


def setting(label: str, seconds: float, lossless: bool = True) -> dict[str, Any]:
    score = {"value": 0.5, "low": 0.4, "high": 0.6}
    facts = {"bundle": "smol", "threads": 2}
    row = {"label": label, "lossless": lossless, "seconds_per_sample": seconds, "facts": facts}
    return {**row, "metrics": {"pass@1": score}}


@pytest.mark.parametrize("is_noisy", [False, True])
def test_noisy_runs_are_marked(tmp_path: Path, is_noisy: bool) -> None:
    settings = [setting("plain", 3.0), setting("bild", 2.0, lossless=False)]
    document = {"task": "human_eval", "frontier": None, "settings": settings}
    plot.draw({**document, "noise": {"is_noisy": is_noisy}}, tmp_path / "scores.svg")
    written = (tmp_path / "scores.svg").read_text()
    assert "bild (approximate)" in written
    assert ("noisy: other programs ran" in written) is is_noisy


def test_samples_of_files_have_no_noise(tmp_path: Path) -> None:
    document = {"task": "human_eval", "frontier": None, "settings": [setting("plain", 3.0)]}
    plot.draw(document, tmp_path / "scores.svg")
    assert "noisy" not in (tmp_path / "scores.svg").read_text()
