"""From runs to rows: speeds, ratios to plain and to the fastest peer, per prompt and category.

A ratio is the median over the repetitions of ratios within one round; over prompts ratios and
speeds have geometric means. Rates of drafting are ratios of sums.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from edgedec.apps.bench.prompts_jobs import TimedOutput
from edgedec.apps.measuring.disturbance import MeasuringWindow
from edgedec.runtime.drafting.stats import DecodeStats, DraftCounts
from edgedec.runtime.engine.prompt_files import FilePrompt

PLAIN = "plain"
Row = dict[str, Any]


@dataclass(frozen=True)
class Round:
    """One prompt in one repetition: what each contestant made of it, by name."""

    i_prompt: int
    repetition: int
    runs: dict[str, TimedOutput]
    windows: tuple[MeasuringWindow, ...] = ()

    def ratio(
        self, name: str, other: str, rate: Callable[[TimedOutput], float | None]
    ) -> float | None:
        """Returns how many times the rate of ``other`` that of ``name`` is."""
        if name not in self.runs or other not in self.runs:
            return None
        above, below = rate(self.runs[name]), rate(self.runs[other])
        return above / below if above and below else None


def lost_share(rounds: Iterable[Round]) -> float | None:
    """Returns the CPU time others took, as a share; None where the system does not tell."""
    windows = [window for round_ in rounds for window in round_.windows]
    return reduce(add, windows).lost_share if windows else None


def prompt_row(
    name: str, prompt: FilePrompt, rounds: Sequence[Round], peers: Sequence[str]
) -> Row | None:
    """Returns what ``name`` made of ``prompt`` in ``rounds``; None if it never ran."""
    runs = [round_.runs[name] for round_ in rounds if name in round_.runs]
    if not runs:
        return None
    expected = rounds[0].runs[PLAIN].token_ids
    stats = [run.stats for run in runs if run.stats is not None]
    fastest = fastest_peer(rounds, peers)
    row = _empty_row("prompt", name, prompt.category)
    return row | {
        "prompt": prompt.name,
        "n_prompts": 1,
        "n_new_tokens": len(runs[0].token_ids),
        "tokens_per_s": _median(run.tokens_per_s for run in runs),
        "first_ms": 1000 * statistics.median(run.first_s for run in runs),
        "total_ms": 1000 * statistics.median(run.total_s for run in runs),
        "speedup": _median(round_.ratio(name, PLAIN, _decode_rate) for round_ in rounds),
        "request_speedup": _median(round_.ratio(name, PLAIN, _request_rate) for round_ in rounds),
        "fastest_peer": fastest,
        "over_fastest_peer": None
        if fastest is None
        else _median(round_.ratio(name, fastest, _decode_rate) for round_ in rounds),
        "n_identical": int(all(run.token_ids == expected for run in runs)),
        **_drafting(stats),
    }


def summary_row(level: str, rows: Sequence[Row]) -> Row:
    """Returns the rows of one contestant on several prompts as one row."""
    row = _empty_row(level, rows[0]["name"], rows[0]["category"] if level == "category" else None)
    timed = [row for row in rows if row["speedup"] is not None]
    worst = min(timed, key=lambda row: float(row["speedup"]), default=None)
    means = ("tokens_per_s", "speedup", "request_speedup", "over_fastest_peer")
    sums = ("n_prompts", "n_new_tokens", "n_identical", *_COUNTERS)
    row |= {key: _geometric_mean(row[key] for row in rows) for key in means}
    for key in sums:
        known = [row[key] for row in rows if row[key] is not None]
        row[key] = sum(known) if known else None
    if worst is not None:
        row |= {"worst_speedup": worst["speedup"], "worst_prompt": worst["prompt"]}
    return row | _rates(row)


def fastest_peer(rounds: Sequence[Round], peers: Sequence[str]) -> str | None:
    """Returns the peer with the highest median speed."""
    speeds: dict[str, float] = {}
    for name in peers:
        rates = (round_.runs[name].tokens_per_s for round_ in rounds if name in round_.runs)
        if (speed := _median(rates)) is not None:
            speeds[name] = speed
    return max(speeds, key=lambda name: speeds[name]) if speeds else None


def drafter_counts(rounds: Iterable[Round]) -> dict[str, dict[str, Any]]:
    """Returns method -> drafter -> counts of all rounds."""
    parts: dict[str, dict[str, list[DraftCounts]]] = {}
    for round_ in rounds:
        for name, run in round_.runs.items():
            for drafter, counts in (run.stats.by_drafter() if run.stats else {}).items():
                parts.setdefault(name, {}).setdefault(drafter, []).append(counts)
    return {
        name: {
            drafter: DraftCounts.total(counts).to_dict() for drafter, counts in counts_of.items()
        }
        for name, counts_of in parts.items()
    }


_COUNTERS = ("n_proposed", "n_evaluated", "n_accepted", "n_passes", "n_pass_tokens")
_COLUMNS = (
    "level", "name", "category", "prompt", "n_prompts", "n_prompt_tokens", "n_new_tokens",
    "tokens_per_s", "first_ms", "total_ms", "speedup", "request_speedup", "worst_speedup",
    "worst_prompt", "fastest_peer", "over_fastest_peer", "n_identical", *_COUNTERS,
    "acceptance_rate", "block_efficiency", "is_noisy",
)  # fmt: skip


def _empty_row(level: str, name: str, category: str | None) -> Row:
    return {**dict.fromkeys(_COLUMNS), "level": level, "name": name, "category": category}


def _drafting(stats: Sequence[DecodeStats]) -> Row:
    if not stats:
        return {}
    counts: Row = {key: sum(getattr(stat, key) for stat in stats) for key in _COUNTERS}
    return counts | _rates(counts)


def _rates(counts: Row) -> Row:
    evaluated, passes = counts["n_evaluated"], counts["n_passes"]
    return {
        "acceptance_rate": counts["n_accepted"] / evaluated if evaluated else None,
        "block_efficiency": counts["n_pass_tokens"] / passes if passes else None,
    }


def _decode_rate(run: TimedOutput) -> float | None:
    return run.tokens_per_s


def _request_rate(run: TimedOutput) -> float | None:
    return len(run.token_ids) / run.total_s if run.total_s > 0 else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _geometric_mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.geometric_mean(known) if known else None
