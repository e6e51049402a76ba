"""The draft head of one engine, opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgedec.models.token_pairs import TokenPairs
from edgedec.runtime.sequences.model import Model
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.text.token_map import TokenMap


@dataclass(frozen=True)
class HeadRole:
    """A draft head's sequences, the tokens its logits are about, and what its features are.

    target_vocab_size: tokens that the target model has logits for. hidden_layers: layers of the
    target model whose hidden states make the features. epsilon: of their norms. release: called
    with the head when nobody needs it. needs_features: no token is read without features, so the
    first of a text is not. has_raw_features: hidden states are features as they are, without a
    norm. mask_token, block_size, predicts_next: see `ModelConfig`. token_pairs: see `HeadEntry`.
    """

    pool: SequencePool
    token_map: TokenMap
    target_vocab_size: int
    hidden_layers: tuple[int, ...]
    epsilon: float
    release: Callable[[Model], None] = lambda model: model.close()
    needs_features: bool = False
    has_raw_features: bool = False
    mask_token: int = 0
    block_size: int = 0
    predicts_next: bool = False
    token_pairs: TokenPairs | None = None

    def forget(self) -> None:
        """Empties the idle sequences."""
        self.pool.forget()

    def close(self) -> None:
        """Closes all sequences and releases the head."""
        self.pool.close()
        self.release(self.pool.model)
