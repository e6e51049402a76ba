"""What trainings of draft heads, exits and draft models report alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

STOPPED_BY_NAN = "training stopped because the loss became NaN; the best weights so far are kept"


@dataclass(frozen=True, kw_only=True)
class DraftingReport:
    """How well what was trained predicts the target model's own tokens, in other texts.

    before: share predicted by what training started from, None if that predicts nothing.
    quantised: share predicted as the bundle holds it. covered: share that its vocabulary has.
    by_kind: share by kind of file.
    """

    bundle: Path
    n_bytes: int
    before: float | None
    quantised: float
    covered: float
    by_kind: dict[str, float]
    n_skipped: int
    is_finite: bool

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields."""
        return {
            "bundle": str(self.bundle),
            "n_bytes": self.n_bytes,
            "held_out_before": None if self.before is None else round(self.before, 4),
            "held_out_quantised": round(self.quantised, 4),
            "covered": round(self.covered, 4),
            "by_kind": {kind: round(share, 4) for kind, share in self.by_kind.items()},
            "n_skipped_files": self.n_skipped,
            "is_finite": self.is_finite,
        }

    @property
    def kinds(self) -> str:
        """The shares by kind of file, for people."""
        return ", ".join(f"{kind or 'no suffix'} {s:.1%}" for kind, s in self.by_kind.items())

    def verdict(self, after: float) -> str:
        """Returns what the training came to on texts that were held out, for people.

        after: share that the weights that are kept predict.
        """
        if self.before is None:
            return (
                f"verdict on other texts: {self.quantised:.1%} of the next tokens predicted; "
                "edgedec bench --prompts says what that saves"
            )
        if after > self.before:
            return (
                f"verdict on other texts: better, {after:.1%} of the next tokens predicted, "
                f"before {self.before:.1%}; edgedec bench --prompts says what that saves"
            )
        return (
            f"verdict on other texts: not better than before ({self.before:.1%} of the next "
            "tokens predicted), so the weights that it started from are kept"
        )

    @property
    def warnings(self) -> list[str]:
        """What went wrong, a line each."""
        lines = []
        if self.n_skipped:
            lines.append(f"{self.n_skipped} files are not UTF-8 text and were skipped")
        if not self.is_finite:
            lines.append(STOPPED_BY_NAN)
        return lines
