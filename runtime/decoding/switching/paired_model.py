"""One of the two models, brought up to the text only when it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.prefill import feed, rewind
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What the latest rows took. gap: tokens computed besides the last one and drafts after it."""

    gap: int = 0
    ms: float = 0.0


@dataclass
class PassCounts:
    """What a model's passes took.

    n_steps, step_ms: passes over the newest token, and drafts after it. n_catch_ups, n_caught_up,
    catch_up_ms: passes over tokens it had missed, how many those were besides the last one of each,
    and the time; such a pass gives the next token as well. prompt_ms: those that reached back into
    the prompt.
    """

    n_steps: int = 0
    step_ms: float = 0.0
    n_catch_ups: int = 0
    n_caught_up: int = 0
    catch_up_ms: float = 0.0
    prompt_ms: float = 0.0

    def add(self, latest: CatchUp, is_prompt: bool) -> None:
        """Counts one more."""
        if is_prompt:
            self.prompt_ms += latest.ms
        elif latest.gap:
            self.n_catch_ups += 1
            self.n_caught_up += latest.gap
            self.catch_up_ms += latest.ms
        else:
            self.n_steps += 1
            self.step_ms += latest.ms


class PairedModel:
    """A sequence, and what its passes took since the prompt of ``n_prompt`` tokens."""

    def __init__(self, sequence: TokenSequence, n_prompt: int) -> None:
        self.sequence = sequence
        self.counts = PassCounts()
        self.latest = CatchUp()
        self._n_prompt = n_prompt

    def rows_after(
        self,
        text: Sequence[int],
        n_rows: int = 1,
        with_logits: bool = True,
        n_drafted: int = 0,
    ) -> Passes[Rows]:
        """Returns the rows after each of the last ``n_rows`` tokens of ``text``.

        n_drafted: how many of them nobody has said yet, which is no catching up.

        The KV cache holds all of ``text`` then. What it had missed is computed in the same pass,
        or before in passes as wide as a prompt's.
        """
        n_known = rewind(self.sequence, text, n_rows)
        rows = yield from feed(self.sequence, text, n_rows, with_logits)
        self.latest = CatchUp(len(text) - n_drafted - n_known - 1, rows.ms)
        self.counts.add(self.latest, n_known < self._n_prompt - 1)
        return rows

    def rewind(self, text: Sequence[int]) -> None:
        """Forgets what is no beginning of ``text``, and a pass in progress."""
        rewind(self.sequence, text, n_rows=0)
