"""What a draft model would keep of a text, predicted from what the target model keeps of it.

A text that the target model has read then need not be read by the draft model, too.

Source: KV Prediction (arXiv 2410.08391), in the other direction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from edgedec.models.config import ModelConfig
from edgedec.models.kv_maps import N_SINKS
from edgedec.runtime.drafting.draft_passes import DraftPasses
from edgedec.runtime.sequences.model import KVPredictor
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.plain_kv import plain_kv
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.sequences.prefill import caught_up
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.common_prefix import common_prefix

N_COMPUTED = 32
"""Last tokens before the first draft, whose rows are computed over the predicted ones."""

MIN_MAPPED = 32
"""Fewer tokens are computed like the others."""

ROW_COST = 0.1
"""Of a predicted row, in computed ones, until it is measured."""

_CHUNK = 256  # tokens whose rows are predicted at once: some megabytes of numbers
_N_TIMED = 128  # tokens that are predicted to see what they cost


Lend = Callable[[Sequence[int]], AbstractContextManager[TokenSequence]]
"""Lends a sequence of exact rows that has as much of a text as any."""


class DraftKVMaps:
    """Maps from a target model to a draft model with the same tokens; opened once, shared.

    pool: sequences of the draft model for texts that are read so. Others, whose rows are exact,
    never hold any of these.
    """

    def __init__(
        self,
        predictor: KVPredictor,
        config: ModelConfig,
        pool: SequencePool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """config: of the target model."""
        self._predictor = predictor
        self._config = config
        self._clock = clock
        self._predicted_ms: float | None = None  # of a row, the latest reading's
        self._computed_ms: float | None = None
        self.pool = pool

    @property
    def row_cost(self) -> float:
        """What a predicted row takes, in computed ones."""
        if self._predicted_ms is None or self._computed_ms is None:
            return ROW_COST
        return self._predicted_ms / self._computed_ms

    def price(self, computed_ms: float, target: TokenSequence) -> None:
        """Takes in what a computed row takes; what a predicted one does is measured once."""
        self._computed_ms = computed_ms
        n_timed = min(_N_TIMED, target.n_exact)
        if self._predicted_ms is not None or n_timed < MIN_MAPPED:
            return
        scratch = TokenSequence(self.pool.model, n_timed)
        try:
            for _ in range(2):  # the first makes memory
                scratch.truncate(0)
                self.read(scratch, target, n_timed)
        finally:
            scratch.close()

    def passes(self, text: Sequence[int], target: TokenSequence, lend: Lend) -> PredictedPasses:
        """Returns passes over a text that ``target`` reads, too.

        They begin with the rows that are computed already.
        """
        sequence = self.pool.take(text, target.group)
        with lend(text) as exact:
            n_computed = exact.reachable(common_prefix(exact.tokens, text))
            if n_computed > min(sequence.n_exact, common_prefix(sequence.tokens, text)):
                sequence.truncate(0)
                sequence.restore(exact.snapshot(n_computed))
        return PredictedPasses(self, sequence, target, lend)

    def read(self, sequence: TokenSequence, target: TokenSequence, stop: int) -> None:
        """Puts the tokens of ``target`` up to ``stop`` behind those of ``sequence``."""
        started_s, n_rows = self._clock(), stop - sequence.n_tokens
        for start in range(sequence.n_tokens, stop, _CHUNK):
            end = min(start + _CHUNK, stop)
            rows = target.snapshot(end, start).kv_rows
            features = plain_kv(rows, self._config, start=start)
            sequence.append_predicted(target.tokens[start:end], self._predictor, features)
        if n_rows >= MIN_MAPPED:
            self._predicted_ms = 1000 * (self._clock() - started_s) / n_rows


class PredictedPasses(DraftPasses):
    """Passes that predict most of what the draft model has not read of the text."""

    def __init__(
        self, reading: DraftKVMaps, sequence: TokenSequence, target: TokenSequence, lend: Lend
    ) -> None:
        super().__init__(sequence, reading.pool.give_back)
        self._reading = reading
        self._target = target
        self._lend = lend
        self._is_exact = False  # from now on
        self._is_predicted = False  # in part, when the output ended

    def n_missing(self, text: Sequence[int]) -> int:
        """Returns how many tokens of ``text`` are not computed yet; a predicted row counts less."""
        n_mapped = max(0, self._mapped_until(text) - self._first_mapped(text))
        return super().n_missing(text) - n_mapped + round(self._reading.row_cost * n_mapped)

    def price(self, row_ms: float, step_ms: float) -> None:
        """Takes in what `DraftPasses.price` does, and measures what a predicted row takes."""
        super().price(row_ms, step_ms)
        self._reading.price(row_ms, self._target)

    def feed(self, text: Sequence[int], with_logits: bool) -> Passes[Rows]:
        """Computes what `align` found missing of ``text``, its end; the rest is predicted."""
        stop = self._mapped_until(text)
        if stop:
            yield from self._read_sinks(text)
            self._reading.read(self.sequence, self._target, stop)
        return (yield from super().feed(text, with_logits))

    def n_predicted(self, text: Sequence[int]) -> int:
        """Returns how many rows of ``text`` are, or will be, predicted or behind such."""
        n_known = common_prefix(self.sequence.tokens, text)
        return max(n_known, self._mapped_until(text)) - min(self.sequence.n_exact, n_known)

    def read_exactly(self) -> None:
        """Has the next feed compute all rows, those that were predicted among them."""
        self._is_exact = True
        self._tokens, self._parents = [], []
        self.sequence.rewind(self.sequence.n_exact)

    def end(self, text: Sequence[int]) -> None:
        """Keeps the rows of ``text`` and no others, and gives the sequence back."""
        self._is_predicted = self.sequence.n_exact < self.sequence.n_tokens
        super().end(text)

    def catch_up(self, text: Sequence[int]) -> Passes[int]:
        """Computes what was predicted of ``text``; later texts that begin so have those rows."""
        if not self._is_predicted:
            return 0
        with self._lend(text) as exact:
            return (yield from caught_up(exact, text))

    def _mapped_until(self, text: Sequence[int]) -> int:
        """Returns how much of ``text`` there will be rows of when it is mapped; 0: it is not."""
        if self._is_exact:
            return 0
        n_read = min(common_prefix(self._target.tokens, text), self._target.n_exact)
        stop = min(n_read, len(text) - N_COMPUTED)
        return stop if stop - self._first_mapped(text) >= MIN_MAPPED else 0

    def _first_mapped(self, text: Sequence[int]) -> int:
        return max(N_SINKS, common_prefix(self.sequence.tokens, text))

    def _read_sinks(self, text: Sequence[int]) -> Passes[None]:
        sinks = text[self.sequence.n_tokens : N_SINKS]
        if sinks:
            yield Pass(self.sequence, TokenTree.chain(sinks), (), with_logits=False)
            self.sequence.commit(range(len(sinks)))
