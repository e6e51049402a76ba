"""The parts an engine is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgedec.models.errors import SessionError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.methods.method_parts import PLAIN, MethodParts
from edgedec.runtime.sequences.model import KVPredictor, Model
from edgedec.runtime.sequences.session_memory import SessionMemory
from edgedec.runtime.text.prompt import PromptEncoder
from edgedec.runtime.text.tokenizer import Codec

if TYPE_CHECKING:  # imported where they are needed: each import delays a first token
    from edgedec.models.final_norm import FinalNorm
    from edgedec.models.pooling import DenseLayer, EmbeddingConfig


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """The parts an engine is made of.

    model: the target model. parts: what decoding methods are made of. stop_token_ids: tokens with
    which the model itself ends an output. defaults: the request used when the caller states none.
    default_method: how requests are decoded that do not say.
    memory: what earlier prompts left. release: called with the target model in the end.
    predictor: opens what predicts keys and values of the target model's later layers, if anything
    does; see `Predictors`.
    final_norm: reads the norm in front of the LM head, if the bundle has its weights.
    embedding: how texts become vectors, where the bundle says so. dense: reads the matrices behind
    the pooling, if there are some. is_embedder: the model makes vectors of texts and writes none.
    hidden_size: of the model. edit_bounds: how likely edits have to be before they are shown, by
    the name of their format.
    """

    model: Model
    tokenizer: Codec
    encoder: PromptEncoder
    parts: MethodParts
    stop_token_ids: tuple[int, ...] = ()
    defaults: GenerationConfig = field(default_factory=GenerationConfig)
    load_ms: float = 0.0
    default_method: str = PLAIN
    memory: SessionMemory = field(default_factory=SessionMemory)
    release: Callable[[Model], None] = lambda model: model.close()
    predictor: Callable[[], KVPredictor] | None = None
    final_norm: Callable[[], FinalNorm] | None = None
    embedding: EmbeddingConfig | None = None
    dense: Callable[[], tuple[DenseLayer, ...]] | None = None
    is_embedder: bool = False
    hidden_size: int = 0
    edit_bounds: Mapping[str, float] = field(default_factory=dict)

    def check_sequential(self, what: str) -> None:
        """Raises a SessionError where the model does not write from left to right.

        what: What needs that, for the error.
        """
        self.check_writes()
        if self.parts.masked is not None:
            raise SessionError(
                f"{what} need a model that writes from left to right, and this one fills masks in: "
                "use another model"
            )

    def check_writes(self) -> None:
        """Raises a SessionError where the model is an encoder, which writes no texts."""
        if self.is_embedder:
            raise SessionError(
                "this model makes vectors of texts and writes none: ask it for embeddings "
                "(Engine.embed, POST /v1/embeddings), or use a model that writes"
            )

    @property
    def context(self) -> int:
        """Most tokens of a text."""
        return self.parts.context
