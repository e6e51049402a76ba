"""What a switch costs here: the target model's pass over tokens it missed, against single steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgedec.runtime.decoding.switching.paired_model import PairedModel
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.sequence import TokenSequence

N_TOKENS = 32
_N_BEFORE = 128
_REPETITIONS = 4


@dataclass(frozen=True)
class CatchUpCost:
    """Milliseconds for the same tokens in one pass and step by step; both give the next token."""

    n_tokens: int
    pass_ms: float
    steps_ms: float

    @property
    def of_steps(self) -> float:
        """The pass in parts of the steps."""
        return self.pass_ms / self.steps_ms

    def __str__(self) -> str:
        return (
            f"catching up {self.n_tokens} tokens takes the target model {self.pass_ms:.1f} ms, "
            f"{self.of_steps:.2f} of as many steps"
        )


def measure_catch_up(
    sequence: TokenSequence,
    repetitions: int = _REPETITIONS,
    clock: Callable[[], float] = time.perf_counter,
) -> CatchUpCost | None:
    """Returns the cost, None where the context has no room for it; the KV cache is left empty.

    Both are measured in turn, several times over, and the shortest time counts: what else the
    machine does only ever adds.
    """
    n_text = _N_BEFORE + N_TOKENS
    if sequence.context < n_text:
        return None
    text, model = [0] * n_text, PairedModel(sequence, 0)

    def timed(ends: Sequence[int]) -> float:
        run_passes(model.rows_after(text[:_N_BEFORE], with_logits=False))
        started_s = clock()
        for end in ends:
            run_passes(model.rows_after(text[:end], with_logits=False))
        return 1000 * (clock() - started_s)

    pass_ms, steps_ms = [], []
    for repetition in range(repetitions + 1):
        pair_ms = timed([n_text]), timed(range(_N_BEFORE + 1, n_text + 1))
        if repetition:  # the first time, memory is made
            pass_ms.append(pair_ms[0])
            steps_ms.append(pair_ms[1])
    sequence.truncate(0)
    return CatchUpCost(N_TOKENS, min(pass_ms), min(steps_ms))
