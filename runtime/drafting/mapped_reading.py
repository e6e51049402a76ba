"""What a draft model would keep of a text, predicted from what the target model keeps of it.

A text that the target model has read then need not be read by the draft model, too.

Source: KV Prediction (arXiv 2410.08391), in the other direction.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.models.config import ModelConfig
from edgedec.runtime.drafting.draft_passes import DraftPasses
from edgedec.runtime.sessions.model import KVPredictor
from edgedec.runtime.sessions.passes import Pass, Passes
from edgedec.runtime.sessions.plain_kv import plain_kv
from edgedec.runtime.sessions.pool import SequencePool
from edgedec.runtime.sessions.rows import Rows
from edgedec.runtime.sessions.sequence import TokenSequence
from edgedec.runtime.sessions.token_tree import TokenTree
from edgedec.runtime.text.common_prefix import common_prefix

N_SINKS = 4
"""First tokens of a text, which attention treats as no others: they are computed."""

N_COMPUTED = 32
"""Last tokens before the first draft, whose rows are computed over the predicted ones."""

LEAST_MAPPED = 32
"""Fewer tokens are computed like the others."""

ROW_COST = 0.1
"""Of a predicted row, in computed ones."""

_CHUNK = 256  # tokens whose rows are predicted at once: some megabytes of numbers


class MappedReading:
    """Maps from a target model to a draft model with the same tokens; opened once, shared.

    pool: sequences of the draft model for texts that are read so. Others, whose rows are exact,
    never hold any of these.
    """

    def __init__(self, predictor: KVPredictor, config: ModelConfig, pool: SequencePool) -> None:
        """config: of the target model."""
        self._predictor = predictor
        self._config = config
        self.pool = pool

    def passes(self, text: Sequence[int], target: TokenSequence) -> MappedPasses:
        """Returns passes over a text that ``target`` reads, too."""
        return MappedPasses(self, self.pool.take(text), target)

    def read(self, sequence: TokenSequence, target: TokenSequence, stop: int) -> None:
        """Puts the tokens of ``target`` up to ``stop`` behind those of ``sequence``."""
        for start in range(sequence.n_tokens, stop, _CHUNK):
            end = min(start + _CHUNK, stop)
            rows = target.snapshot(end, start).kv_rows
            features = plain_kv(rows, self._config, start=start)
            sequence.append_predicted(target.tokens[start:end], self._predictor, features)


class MappedPasses(DraftPasses):
    """Passes that predict most of what the draft model has not read of the text."""

    def __init__(
        self, reading: MappedReading, sequence: TokenSequence, target: TokenSequence
    ) -> None:
        super().__init__(sequence, reading.pool.give_back)
        self._reading = reading
        self._target = target

    def n_missing(self, text: Sequence[int]) -> int:
        """Returns how many tokens of ``text`` are not computed yet; a predicted row counts less."""
        n_mapped = max(0, self._mapped_until(text) - self._first_mapped(text))
        return super().n_missing(text) - n_mapped + round(ROW_COST * n_mapped)

    def feed(self, text: Sequence[int], with_logits: bool) -> Passes[Rows]:
        """Computes what `align` found missing of ``text``, its end; the rest is predicted."""
        stop = self._mapped_until(text)
        if stop:
            yield from self._read_sinks(text)
            self._reading.read(self.sequence, self._target, stop)
        return (yield from super().feed(text, with_logits))

    def _mapped_until(self, text: Sequence[int]) -> int:
        """Returns how much of ``text`` there will be rows of when it is mapped; 0: it is not."""
        n_read = min(common_prefix(self._target.tokens, text), self._target.n_exact)
        stop = min(n_read, len(text) - N_COMPUTED)
        return stop if stop - self._first_mapped(text) >= LEAST_MAPPED else 0

    def _first_mapped(self, text: Sequence[int]) -> int:
        return max(N_SINKS, common_prefix(self.sequence.tokens, text))

    def _read_sinks(self, text: Sequence[int]) -> Passes[None]:
        sinks = text[self.sequence.n_tokens : N_SINKS]
        if sinks:
            yield Pass(self.sequence, TokenTree.chain(sinks), (), with_logits=False)
            self.sequence.commit(range(len(sinks)))
