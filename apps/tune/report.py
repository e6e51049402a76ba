"""What tuning found: the table, the choice, and what goes into the manifest."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from edgedec.apps.tune.runs import PLAIN, REFERENCES
from edgedec.apps.tune.state import MeasuredRun, Round
from edgedec.apps.tune.sweep import Expected
from edgedec.models.manifest import TUNED_KEY, BundleManifest
from edgedec.runtime.config.switching import SwitchConfig

PROXY = (
    "agreement is the share of tokens that the target model would have chosen, given the text "
    "before each; it stands in for quality, which `edgedec eval` measures"
)


@dataclass(frozen=True)
class TunedRow:
    """One setting: what its traces promised and what its runs did.

    agreement, share_target, ms_per_token: measured; None without a run. speedup: of time per token
    against plain decoding in the same rounds.
    """

    name: str
    expected: Expected | None
    agreement: float | None = None
    share_target: float | None = None
    ms_per_token: float | None = None
    speedup: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields."""
        fields = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "expected"
        }
        if self.expected is not None:
            for name in ("agreement", "share_target", "ms_per_token"):
                fields[f"expected_{name}"] = getattr(self.expected, name)
        return fields


def rows_of(expected: Sequence[Expected], rounds: Sequence[Round]) -> list[TunedRow]:
    """Returns a row for each reference that ran, and for each setting."""
    names = list(REFERENCES) if rounds else []
    rows = [_row(name, None, rounds) for name in names]
    return rows + [_row(str(prediction.setting), prediction, rounds) for prediction in expected]


def choose(rows: Sequence[TunedRow], policy: str, keep: float) -> TunedRow | None:
    """Returns the fastest setting of ``policy`` that agrees at least ``keep``.

    The most agreeing one if none does; by what was promised where nothing ran.
    """
    of_policy = [r for r in rows if r.expected is not None and r.expected.setting.policy == policy]
    ran = [(r, r.agreement, r.ms_per_token) for r in of_policy if r.ms_per_token is not None]
    predicted = [
        (r, r.expected.agreement, r.expected.ms_per_token)
        for r in of_policy
        if r.expected is not None
    ]
    usable = ran or predicted
    if not usable:
        return None
    fit = [
        (ms, row) for row, agreement, ms in usable if agreement is not None and agreement >= keep
    ]
    if fit:
        return min(fit, key=lambda candidate: candidate[0])[1]
    return max(usable, key=lambda row: row[1] or 0.0)[0]


def render(rows: Sequence[TunedRow], chosen: Sequence[TunedRow], n_rounds: int) -> Table:
    """Returns the table for a person."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("setting", overflow="fold")
    for name in ("promised", "agreement", "by target", "ms/token", f"x {PLAIN}"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.name,
            _percent(row.expected.agreement if row.expected else None),
            _percent(row.agreement),
            _percent(row.share_target),
            "" if row.ms_per_token is None else f"{row.ms_per_token:.1f}",
            "" if row.speedup is None else f"{row.speedup:.2f}",
            style="bold" if row in chosen else None,
        )
    table.caption = f"{n_rounds} prompts with every setting; bold is chosen"
    return table


@dataclass(frozen=True)
class ThresholdChoice:
    """What `--threshold auto` shall mean for one policy, and what that rests on."""

    setting: SwitchConfig
    evidence: dict[str, Any]


def with_tuned(
    manifest: BundleManifest, choices: Sequence[ThresholdChoice], draft: str
) -> BundleManifest:
    """Returns ``manifest`` with ``choices`` among its defaults.

    Choices of other policies stay, unless they were made with another draft model.

    draft: the draft model's fingerprint.
    """
    stored = manifest.defaults.get(TUNED_KEY)
    old: dict[str, Any] = stored if isinstance(stored, dict) else {}
    is_same = old.get("draft") == draft
    policies, evidence = (
        dict(old.get(name, {})) if is_same else {} for name in ("policies", "evidence")
    )
    for choice in choices:
        policies[choice.setting.policy] = choice.setting.to_dict()
        evidence[choice.setting.policy] = choice.evidence
    tuned = {"draft": draft, "policies": policies, "evidence": evidence}
    return dataclasses.replace(manifest, defaults={**manifest.defaults, TUNED_KEY: tuned})


def _row(name: str, expected: Expected | None, rounds: Sequence[Round]) -> TunedRow:
    if not rounds:
        return TunedRow(name, expected)
    runs, plain = [measured[name] for measured in rounds], [measured[PLAIN] for measured in rounds]
    n_tokens = sum(run.n_tokens for run in runs)
    ms = _ms_per_token(runs)
    return TunedRow(
        name=name,
        expected=expected,
        agreement=sum(run.n_chosen for run in runs) / n_tokens,
        share_target=None if name in REFERENCES else sum(run.n_target for run in runs) / n_tokens,
        ms_per_token=ms,
        speedup=_ms_per_token(plain) / ms if ms else None,
    )


def _ms_per_token(runs: Sequence[MeasuredRun]) -> float:
    """Returns the time of a token after the first."""
    n_later = sum(run.n_tokens - 1 for run in runs)
    return sum(run.ms for run in runs) / n_later if n_later else 0.0


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
