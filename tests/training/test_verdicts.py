"""What a training says of itself at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.training.report import DraftingReport


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (None, "verdict on other texts: 48.0% of the next tokens predicted; edgedec bench"),
        (0.4, "verdict on other texts: better, 50.0% of the next tokens predicted, before 40.0%"),
        (
            0.5,
            "verdict on other texts: not better than before (50.0% of the next tokens predicted)",
        ),
    ],
)
def test_a_training_ends_with_a_verdict_on_texts_held_out(before: float | None, words: str) -> None:
    report = DraftingReport(
        bundle=Path("out.edgedec"),
        n_bytes=1,
        before=before,
        quantised=0.48,
        covered=1.0,
        by_kind={},
        n_skipped=0,
        is_finite=True,
    )
    assert report.verdict(0.5).startswith(words)
