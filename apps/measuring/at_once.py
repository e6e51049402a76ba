"""How many answers a command has an engine write at a time, and that people learn of it."""

from __future__ import annotations

from edgedec.apps.console.terminal import note
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.engine.at_once import choose_n_at_once
from edgedec.runtime.engine.engine import Engine


def announced_n_at_once(
    n_requested: int | None, engine: Engine, costs: CostTable | None = None
) -> int:
    """Returns what `choose_n_at_once` does; notes it where nobody asked for a number."""
    chosen = choose_n_at_once(n_requested, engine, costs)
    if n_requested is None and chosen > 1:
        note(f"{chosen} answers at a time, by the time of passes here (--parallel)")
    return chosen
