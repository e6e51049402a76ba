"""What a training says of itself at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.training.report import DraftingReport


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (None, []),
        (0.4, ["better than before, which predicted 40.0%"]),
        (0.5, ["not better than before (50.0% of the next tokens predicted), so the weights that "
               "it started from are kept"]),
    ],
)  # fmt: skip
def test_a_training_ends_with_a_verdict_on_texts_held_out(
    before: float | None, words: list[str]
) -> None:
    report = DraftingReport(
        bundle=Path("out.edgedec"),
        origin=Path("in.edgedec"),
        n_bytes=1,
        before=before,
        quantised=0.48,
        covered=1.0,
        by_kind={},
        n_skipped=0,
        is_finite=True,
        speeds=None,
    )
    *said, speed = report.verdict(0.5)
    assert said == words
    assert speed.startswith("no verdict on speed: training was stopped")
