"""What trainings of draft heads, exits and draft models report alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedec.training.speed_check import Speeds

STOPPED_BY_NAN = "training stopped because the loss became NaN; the best weights so far are kept"


@dataclass(frozen=True, kw_only=True)
class DraftingReport:
    """How well what was trained predicts the target model's own tokens, in other texts.

    before: share predicted by what training started from, None if that predicts nothing.
    quantised: share predicted as the bundle holds it. covered: share that its vocabulary has.
    by_kind: share by kind of file. origin: what training began with. speeds: of ``bundle``
    and ``origin``; None if they were not measured.
    """

    bundle: Path
    origin: Path
    n_bytes: int
    before: float | None
    quantised: float
    covered: float
    by_kind: dict[str, float]
    n_skipped: int
    is_finite: bool
    speeds: Speeds | None

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
            "speed": None if self.speeds is None else self.speeds.to_dict(),
        }

    @property
    def kinds(self) -> str:
        """The shares by kind of file, for people."""
        return ", ".join(f"{kind or 'no suffix'} {s:.1%}" for kind, s in self.by_kind.items())

    def verdict(self, after: float) -> list[str]:
        """Returns what the training came to on texts that were held out, a line each.

        after: share that the weights that are kept predict.
        """
        lines = []
        if self.before is not None and after > self.before:
            lines.append(f"better than before, which predicted {self.before:.1%}")
        elif self.before is not None:
            lines.append(
                f"not better than before ({self.before:.1%} of the next tokens predicted), so the "
                "weights that it started from are kept"
            )
        if self.speeds is None:
            lines.append(
                "no verdict on speed: training was stopped, or the texts that were held out are "
                "too short"
            )
        else:
            lines.append(self.speeds.text(self.origin))
        return lines

    @property
    def warnings(self) -> list[str]:
        """What went wrong, a line each."""
        lines = []
        if self.n_skipped:
            lines.append(f"{self.n_skipped} files are not UTF-8 text and were skipped")
        if not self.is_finite:
            lines.append(STOPPED_BY_NAN)
        return lines
