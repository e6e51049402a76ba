"""The draft head of one engine, opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from edgedec.models.token_pairs import TokenPairs
from edgedec.runtime.sequences.model import Model
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.text.token_map import TokenMap


@dataclass(frozen=True)
class HeadRole:
    """A draft head's sequences, the tokens its logits are about, and what its features are.

    target_vocab_size: tokens that the target model has logits for. hidden_layers: layers of the
    target model whose hidden states make the features. epsilon: of their norms. release: called
    with the head when nobody needs it. exit_costs: of a level that is drafted behind each exit, in
    passes of the target model over one row. is_adapter: see `ADAPTER`. needs_features: no token is
    read without features, so the first of a text is not. has_raw_features: hidden states are
    features as they are, without a norm. mask_token, block_size, predicts_next: see `ModelConfig`.
    token_pairs: see `HeadEntry`.
    """

    pool: SequencePool
    token_map: TokenMap
    target_vocab_size: int
    hidden_layers: tuple[int, ...]
    epsilon: float
    release: Callable[[Model], None] = lambda model: model.close()
    exit_costs: Mapping[int, float] = field(default_factory=dict)
    is_adapter: bool = False
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
