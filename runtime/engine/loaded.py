"""The parts an engine is made of."""

from __future__ import annotations

from collections.abc import Callable
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

    def check_sequential(self, what: str) -> None:
        """Raises a SessionError where the model fills masks in, and ``what`` need another one."""
        if self.parts.masked is not None:
            raise SessionError(
                f"{what} need a model that writes from left to right, and this one fills masks in: "
                "use another model"
            )

    @property
    def context(self) -> int:
        """Most tokens of a text."""
        return self.parts.context
