"""The draft model of one engine, opened: whoever drafts or takes turns with it shares it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from edgedec.runtime.drafting.draft_kv_maps import DraftKVMaps
from edgedec.runtime.sequences.model import Model
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.text.token_map import TokenMap


@dataclass(frozen=True)
class DraftRole:
    """A draft model's sequences and its tokens.

    token_map: between the target model's tokens and its own. target_vocab_size: tokens that the
    target model has logits for. recall: called with a sequence and a text in draft tokens; it may
    fill the KV cache with a prefix of it. release: called with the model when nobody needs it.
    mapped: what predicts its keys and values from the target model's, if anything does.
    mask_token: what stands where it is to say a token, if it drafts in one pass.
    """

    pool: SequencePool
    token_map: TokenMap
    target_vocab_size: int
    recall: Callable[[TokenSequence, Sequence[int]], None] = lambda sequence, text: None
    release: Callable[[Model], None] = lambda model: model.close()
    mapped: DraftKVMaps | None = None
    mask_token: int | None = None

    @contextmanager
    def lent(self, text: Sequence[int], group: str = "") -> Iterator[TokenSequence]:
        """Lends a sequence for ``text``, as `take` does, while the block runs."""
        sequence = self.take(text, group)
        try:
            yield sequence
        finally:
            self.pool.give_back(sequence)

    def take(self, text: Sequence[int], group: str = "") -> TokenSequence:
        """Returns a sequence for ``text``, draft tokens, with what is known of its beginning."""
        sequence = self.pool.take(text, group)
        try:
            self.recall(sequence, text)
        except BaseException:
            self.pool.give_back(sequence)
            raise
        return sequence

    def forget(self) -> None:
        """Empties the idle sequences."""
        for pool in self._pools:
            pool.forget()

    def close(self) -> None:
        """Closes all sequences and releases the model."""
        for pool in self._pools:
            pool.close()
        self.release(self.pool.model)

    @property
    def _pools(self) -> list[SequencePool]:
        return [self.pool, *([] if self.mapped is None else [self.mapped.pool])]
