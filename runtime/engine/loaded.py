"""The parts an engine is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.drafting.core_split import CoreSplit
from edgedec.runtime.methods.method_parts import PLAIN
from edgedec.runtime.sequences.memory import SessionMemory
from edgedec.runtime.sequences.model import KVPredictor, Model
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.text.prompt import PromptEncoder
from edgedec.runtime.text.tokenizer import Codec

if TYPE_CHECKING:  # imported where they are needed: each import delays a first token
    from edgedec.models.final_norm import FinalNorm
    from edgedec.runtime.decoding.prefilling import Auxiliary
    from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore
    from edgedec.runtime.drafting.skip_set import SkipSet
    from edgedec.runtime.methods.draft_source import DraftSource
    from edgedec.runtime.methods.head_source import HeadSource


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """The parts an engine is made of.

    model: the target model. context: most tokens of a text. stop_token_ids: tokens with which the
    model itself ends an output. defaults: the request used when the caller states none. draft: the
    draft model, opened by methods that need it. default_method: how requests are decoded that do
    not say.
    identity, tuned, skip_set, head, store, is_store_growing, split: see `MethodParts`.
    memory: what earlier prompts left. release: called with the target model in the end.
    predictor, auxiliary: open what predicts keys and values, if anything does; see `Predictors`.
    final_norm: reads the norm in front of the LM head, if the bundle has its weights.
    """

    model: Model
    context: int
    tokenizer: Codec
    encoder: PromptEncoder
    stop_token_ids: tuple[int, ...] = ()
    defaults: GenerationConfig = field(default_factory=GenerationConfig)
    load_ms: float = 0.0
    draft: DraftSource | None = None
    default_method: str = PLAIN
    identity: str = ""
    memory: SessionMemory = field(default_factory=SessionMemory)
    tuned: Any = None
    skip_set: SkipSet | None = None
    head: HeadSource | None = None
    store: NgramStore | None = None
    is_store_growing: bool = True
    split: CoreSplit = field(default_factory=CoreSplit)
    release: Callable[[Model], None] = lambda model: model.close()
    predictor: Callable[[], KVPredictor] | None = None
    auxiliary: Callable[[SequencePool], Auxiliary] | None = None
    final_norm: Callable[[], FinalNorm] | None = None
