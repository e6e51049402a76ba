"""What every `Model` states of itself, whoever runs its graph."""

from __future__ import annotations

from edgedec.models.config import ModelConfig
from edgedec.models.graph import Capabilities, GraphContract


class ModelFacts:
    """The part of a `Model` that its configuration and its graph's contract decide."""

    is_movable = False

    def __init__(self, config: ModelConfig, contract: GraphContract) -> None:
        self.config = config
        self.contract = contract

    @property
    def capabilities(self) -> Capabilities:
        return self.contract.can

    @property
    def vocab_size(self) -> int:
        return self.config.n_logits

    @property
    def n_token_ids(self) -> int:
        return self.config.vocab_size

    @property
    def n_layers(self) -> int:
        return self.config.n_layers
