"""EmbeddingGemma as GGUF files have it: Gemma 3 whose rows all see each other.

Hugging Face directories are of `gemma3`.
"""

from __future__ import annotations

from edgedec.models.blocks import decoder
from edgedec.models.config import ModelConfig
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families._gguf import GgufFacts, gguf_decoder, gguf_windowed
from edgedec.models.families._windows import with_local_layers
from edgedec.models.families.gemma2 import gguf_query_size, weights, with_gemma
from edgedec.models.families.gemma3 import LAYERS_OF_27B, LOCAL_THETA, PATTERN, as_embedder
from edgedec.models.fields import Fields

__all__ = ["UNREAD", "read_gguf", "read_hf", "recipe", "weights"]

recipe = decoder

UNREAD = frozenset({"dense_2.weight", "dense_3.weight"})
"""What stands behind the pooling."""

_NAME = "gemma-embedding"


def read_hf(fields: Fields) -> ModelConfig:
    """Refuses Hugging Face directories, whose family is ``gemma3_text``.

    Raises:
        UnsupportedModelError: Always.
    """
    raise UnsupportedModelError(
        "gemma-embedding is a name of GGUF files, expected model_type gemma3_text"
    )


def read_gguf(facts: GgufFacts) -> ModelConfig:
    """Returns the config that the GGUF header states.

    Source: ggml-org/llama.cpp ``src/models/gemma-embedding.cpp`` (MIT): half of the window lies on
    either side of a token.
    """
    fields = facts.fields
    fields.refuse(f"{_NAME}.attention.causal", False)
    config = gguf_decoder(facts, _NAME, has_qk_norm=True, has_windows=True)
    query_size = gguf_query_size(config, LAYERS_OF_27B)
    config = as_embedder(with_gemma(config, query_size, attention_softcap=0.0, logit_softcap=0.0))
    pattern = f"{_NAME}.attention.sliding_window_pattern"
    local = gguf_windowed(fields, pattern, config.n_layers, PATTERN)
    window = fields.integer(f"{_NAME}.attention.sliding_window")
    theta = fields.number(f"{_NAME}.rope.freq_base_swa", LOCAL_THETA)
    return with_local_layers(config, local, window // 2 + 1, theta)
