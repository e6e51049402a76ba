"""Sizes that the classes of transformers take where a ``config.json`` states none.

None is taken for the hidden size: a file without it is damaged.

Source: transformers 4.57 and 5.24 ``models/*/configuration_*.py`` (Apache-2.0).
"""

from __future__ import annotations

from edgedec.models.errors import CheckpointError
from edgedec.models.fields import Fields

_KEYS = ("vocab_size", "intermediate_size", "num_hidden_layers",
         "num_attention_heads")  # fmt: skip
_LLAMA = (32000, 11008, 32, 32)
_SIZES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("llama", "granite", "granitemoe", "granitemoehybrid", "granitemoeshared"), _LLAMA
    ),
    "bamba": (128000, 14336, 32, 32),
    "ernie4_5": (103424, 3072, 18, 16),
    "exaone4": (102400, 16384, 32, 32),
    "falcon_h1": (128000, 14336, 32, 32),
    "gemma2": (256000, 9216, 26, 8),
    "gemma3_text": (262208, 9216, 26, 8),
    "gpt_oss": (201088, 2880, 36, 64),
    "hunyuan_v1_dense": (290943, 11008, 32, 32),
    "lfm2": (65536, 12288, 32, 32),
    "mistral": (32000, 14336, 32, 32),
    "mixtral": (32000, 14336, 32, 32),
    "nemotron_h": (131072, 21504, 4, 32),
    "olmo2": (50304, 11008, 32, 32),
    "olmo3": (50304, 11008, 32, 32),
    "phi3": (32064, 8192, 32, 32),
    "qwen2": (151936, 22016, 32, 32),
    "qwen2_moe": (151936, 5632, 24, 16),
    "qwen3": (151936, 22016, 32, 32),
    "qwen3_5_text": (248320, 12288, 32, 16),
    "qwen3_moe": (151936, 6144, 24, 32),
    "qwen3_next": (151936, 5632, 48, 16),
    "smollm3": (128256, 11008, 36, 16),
}


def with_class_sizes(fields: Fields) -> Fields:
    """Returns ``fields`` with the sizes of the family's class for those that are absent."""
    sizes = zip(_KEYS, _SIZES.get(str(fields.get("model_type")), ()), strict=False)
    return Fields({**dict(sizes), **fields.values}, fields.origin, CheckpointError)
