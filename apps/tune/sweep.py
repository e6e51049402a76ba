"""Settings tried on recorded traces: what they would agree to and cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.apps.tune.traces import Trace
from edgedec.runtime.config.switching import MARGIN, SwitchConfig
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.switching.policy import ModelRole, make_policy

COST_SIZES = (1, 2, 4, 8, 16, 32, 64)
"""Pass sizes that are measured; a gap between them costs what lies between."""

COST_SWEEPS = 5
"""Times that each of them is measured."""

WINDOWS = (1, 3, 5, 8, 16)
DWELLS = (1, 3, 5, 10)
HYSTERESES = (1.0, 0.7)
_QUANTILES = (0.2, 0.35, 0.5, 0.6, 0.7, 0.78, 0.84, 0.89, 0.93, 0.96, 0.98)


@dataclass(frozen=True)
class Expected:
    """What a setting would do with the traces.

    agreement: share of tokens that are the target model's, by its own text.
    """

    setting: SwitchConfig
    agreement: float
    share_target: float
    ms_per_token: float


@dataclass(frozen=True)
class Costs:
    """What passes of both models cost here."""

    draft: CostTable
    target: CostTable

    def ms(self, model: ModelRole, n_rows: int) -> float:
        """Returns the expected milliseconds of a pass; none for a row that is known."""
        table = self.draft if model is ModelRole.DRAFT else self.target
        return table.ms(n_rows) if n_rows else 0.0


def expect(setting: SwitchConfig, traces: Iterable[Trace], costs: Costs) -> Expected:
    """Returns what ``setting`` would do in trust, as if no token changed what follows.

    Both models' rows after the prompt are taken to be known. Every pass is charged, over all
    tokens its model has missed. Passes saved by looking up what the text said before are not
    counted on.
    """
    n_tokens = n_agreeing = n_target = 0
    total_ms = 0.0
    for trace in traces:
        policy = make_policy(setting)
        active = policy.begin()
        n_known = {ModelRole.DRAFT: 0, ModelRole.TARGET: 0}
        for position in range(len(trace)):
            total_ms += costs.ms(active, position - n_known[active])
            n_known[active] = position
            wrote = active
            says = trace.draft if active is ModelRole.DRAFT else trace.target
            active = policy.observe(active, says[position])
            if active is not wrote and policy.discards and wrote is ModelRole.DRAFT:
                total_ms += costs.ms(active, position - n_known[active])
                n_known[active] = position
                wrote = active
                active = policy.observe(active, trace.target[position])
            n_target += wrote is ModelRole.TARGET
            n_agreeing += wrote is ModelRole.TARGET or trace.agrees[position]
        n_tokens += len(trace)
    return Expected(setting, n_agreeing / n_tokens, n_target / n_tokens, total_ms / n_tokens)


def candidates(policy: str, traces: Sequence[Trace]) -> Iterator[SwitchConfig]:
    """Yields the settings that are tried: thresholds at quantiles of the doubt over each window."""
    for window, dwell, hysteresis in itertools.product(WINDOWS, DWELLS, HYSTERESES):
        levels = np.concatenate([_levels(policy, trace, window) for trace in traces])
        for threshold in sorted({round(float(t), 4) for t in np.quantile(levels, _QUANTILES)}):
            yield SwitchConfig(
                policy=policy,
                threshold=threshold,
                window=window,
                dwell=dwell,
                hysteresis=hysteresis,
            )


def frontier(expected: Iterable[Expected]) -> list[Expected]:
    """Returns those that nothing cheaper agrees as much as, the cheapest first."""
    best: list[Expected] = []
    for candidate in sorted(expected, key=lambda e: (e.ms_per_token, -e.agreement)):
        if not best or candidate.agreement > best[-1].agreement:
            best.append(candidate)
    return best


def around(best: Sequence[Expected], keep: float) -> list[Expected]:
    """Returns the settings of a frontier worth a real run: at ``keep``, and to both sides of it.

    What a text really does is not quite what its trace predicts.
    """
    levels = (keep, (1 + keep) / 2, keep - (1 - keep) / 2)
    chosen: list[Expected] = []
    for level in levels:
        nearest = next((e for e in best if e.agreement >= level), best[-1])
        if nearest not in chosen:
            chosen.append(nearest)
    return chosen


def _levels(policy: str, trace: Trace, window: int) -> list[float]:
    """Returns the rolling doubt of the draft model along a trace."""
    doubts = [1 - s.margin if policy == MARGIN else s.entropy for s in trace.draft]
    totals = np.cumsum([0.0, *doubts])
    return [
        float(totals[i] - totals[max(0, i - window)]) / min(i, window)
        for i in range(1, len(doubts) + 1)
    ]
