"""How many answers an engine should write at a time: from what passes over more rows cost."""

from __future__ import annotations

from edgedec.models.errors import ConfigError
from edgedec.runtime.decoding.cost_table import ROWS, CostTable
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.sequences.passes import run_passes

_WORTH = 1.05
"""How many times the tokens per second more texts at once must give to be worth their memory."""


def choose_n_at_once(
    n_requested: int | None, engine: Engine, costs: CostTable | None = None
) -> int:
    """Returns ``n_requested``, or the number that gives most tokens per second here.

    costs: of passes; measured when None.

    Raises:
        ConfigError: The model computes fewer texts in one pass than ``n_requested``.
    """
    if n_requested == 1:
        return 1
    most = engine.model.capabilities.n_sequences
    if n_requested is not None:
        if n_requested > most:
            raise ConfigError(
                f"--parallel is {n_requested}, but a pass of this bundle holds at most {most} texts"
                f": ask for {most} or fewer"
            )
        return n_requested
    if most == 1:
        return 1
    return best_n_at_once(_measured(engine) if costs is None else costs, most)


def best_n_at_once(costs: CostTable, most: int) -> int:
    """Returns how many texts at once give most tokens per second; few where more add little."""
    best = 1
    for n in ROWS:
        if n <= most and n / costs.ms(n) > _WORTH * best / costs.ms(best):
            best = n
    return best


def _measured(engine: Engine) -> CostTable:
    sequence = engine.new_sequence()
    try:
        return run_passes(CostTable.measure(sequence))
    finally:
        sequence.close()
