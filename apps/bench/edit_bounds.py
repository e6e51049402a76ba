"""How likely an edit has to be before it is shown: chosen on some cases, reported on others."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgedec.apps.bench.edit_verdicts import Verdict
from edgedec.apps.bench.edits_job import EditRow
from edgedec.models.manifest import EDITS_KEY, BundleManifest

MIN_GOOD = 0.6
"""Share of right and near edits, of those that are shown."""

MIN_SILENT = 0.9
"""Share of silence where nothing follows."""

_BOUNDS = (*(i / 20 for i in range(1, 19)), 0.92, 0.94, 0.96, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999)
"""Not among them: 0, with which edits are shown that no recent change speaks for."""


@dataclass(frozen=True)
class Quality:
    """What is shown at one bound.

    n_follow: cases after which an edit followed. n_silent: cases in which nothing was shown.
    n_right_silent: of these, where nothing followed.
    """

    bound: float
    n_cases: int
    n_follow: int
    n_right: int
    n_near: int
    n_wrong: int
    n_silent: int
    n_right_silent: int

    @property
    def good_share(self) -> float | None:
        """Right and near edits, of those shown; None if none are."""
        n_shown = self.n_cases - self.n_silent
        return (self.n_right + self.n_near) / n_shown if n_shown else None

    @property
    def silent_share(self) -> float | None:
        """Silence where nothing follows; None if there is no such case."""
        n_nothing = self.n_cases - self.n_follow
        return self.n_right_silent / n_nothing if n_nothing else None

    @property
    def is_enough(self) -> bool:
        """Says whether edits are shown, and these are worth it."""
        silent = self.silent_share
        is_silent = silent is None or silent >= MIN_SILENT
        return self.good_share is not None and self.good_share >= MIN_GOOD and is_silent

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields and shares, JSON-ready."""
        shares = {"good_share": self.good_share, "silent_share": self.silent_share}
        return dataclasses.asdict(self) | shares


def quality(rows: Sequence[EditRow], bound: float) -> Quality:
    """Returns what is shown in some cases if edits below ``bound`` are not."""
    verdicts = [(row.verdict(bound), row.follows) for row in rows]
    shown = [verdict for verdict, _ in verdicts]
    return Quality(
        bound,
        len(rows),
        sum(row.follows for row in rows),
        shown.count(Verdict.RIGHT),
        shown.count(Verdict.NEAR),
        shown.count(Verdict.WRONG),
        shown.count(None),
        sum(verdict is None and not follows for verdict, follows in verdicts),
    )


def halves(rows: Sequence[EditRow]) -> tuple[list[EditRow], list[EditRow]]:
    """Returns cases to choose on and cases to report on, commit by commit.

    Cases of one commit resemble one another, so they stay together.
    """
    chosen = [int(row.group, 16) % 2 == 0 for row in rows]
    pairs = list(zip(rows, chosen, strict=True))
    return [row for row, is_first in pairs if is_first], [
        row for row, is_first in pairs if not is_first
    ]


def choose_bound(rows: Sequence[EditRow]) -> Quality | None:
    """Returns the lowest bound above which every bound that shows something is good enough.

    None if there is no such bound.
    """
    best = None
    for bound in reversed(_BOUNDS):
        at_bound = quality(rows, bound)
        if at_bound.good_share is not None and not at_bound.is_enough:
            break
        best = at_bound if at_bound.is_enough else best
    return best


def with_bound(
    manifest: BundleManifest, edit_format: str, chosen: Quality, reported: Quality
) -> BundleManifest:
    """Returns a manifest that says from which probability on edits are shown."""
    stored = manifest.defaults.get(EDITS_KEY)
    old: dict[str, Any] = stored if isinstance(stored, dict) else {}
    entry = {"min_probability": chosen.bound, "evidence": reported.to_dict()}
    return dataclasses.replace(
        manifest, defaults={**manifest.defaults, EDITS_KEY: {**old, edit_format: entry}}
    )
