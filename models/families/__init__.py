"""Model families: one module per family, named as its ``model_type`` (GGUF: architecture).

A module is named in small letters, with underscores in place of hyphens.

A module is found by its name; there is no list to edit but that of names which others give the
same family. Modules with a leading underscore hold what families share.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Sequence
from typing import Protocol, TypeVar, cast

from edgedec.models.blocks import Ops
from edgedec.models.config import ModelConfig
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families._gguf import (
    LONG_FACTORS,
    ROPE_FACTORS,
    SHORT_FACTORS,
    GgufFacts,
    NotedKeys,
    check_all_read,
)
from edgedec.models.families._hf import HAS_O_BIAS, refuse_packing
from edgedec.models.families._layer_inputs import unread_kv
from edgedec.models.fields import Fields
from edgedec.models.weights import Weight

__all__ = [
    "DENSE_TENSORS",
    "HAS_O_BIAS",
    "ROPE_FACTOR_NAMES",
    "Family",
    "GgufFacts",
    "NotedKeys",
    "check_all_read",
    "draft_layer",
    "find_family",
    "hf_scales",
    "is_known",
    "known_families",
    "matrices",
    "refuse_packing",
    "scales_weights",
    "unread_weights",
    "weight_shapes",
]

T = TypeVar("T")

ROPE_FACTOR_NAMES = (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS)
"""Tensors of GGUF files that hold facts about rotation, not weights."""


DENSE_TENSORS = ("dense_2.weight", "dense_3.weight")
"""Matrices of GGUF files behind the pooling, in order."""

_ALIASES = {
    "gemma3_text": "gemma3",
    "gemma3n_text": "gemma3n",
    "gemma4_text": "gemma4",
    "granitehybrid": "granitemoehybrid",
    "granitemoeshared": "granitemoe",
    "hunyuan_dense": "hunyuan_v1_dense",
    "qwen2moe": "qwen2_moe",
    "qwen35": "qwen3_5_text",
    "qwen35moe": "qwen3_5_moe_text",
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "xlm_roberta": "roberta",
}
"""Other names of families, in transformers or in GGUF files -> the module."""


class Family(Protocol):
    """What a family module defines."""

    def read_hf(self, fields: Fields) -> ModelConfig:
        """Returns the config that a Hugging Face ``config.json`` states."""

    def read_gguf(self, facts: GgufFacts) -> ModelConfig:
        """Returns the config that a GGUF header states."""

    def recipe(
        self, ops: Ops[T], config: ModelConfig, layer_gates: Sequence[bool] | None = None
    ) -> T:
        """Returns the logits of the selected rows; ``layer_gates`` as for `blocks.decoder`."""

    def weights(self, config: ModelConfig) -> dict[str, Weight]:
        """Returns every weight the recipe reads: our name -> its shape and where it lies."""


def known_families() -> tuple[str, ...]:
    """Returns the names of all families, sorted."""
    return _families_in(tuple(__path__))


@functools.cache
def _families_in(folders: tuple[str, ...]) -> tuple[str, ...]:
    names = (module.name for module in pkgutil.iter_modules(folders))
    return tuple(sorted({*_ALIASES, *(name for name in names if not name.startswith("_"))}))


def is_known(name: str) -> bool:
    """Whether there is a module of the family called ``name``."""
    return _module_of(name) in known_families()


def _module_of(name: str) -> str:
    return name.replace("-", "_").lower()


def find_family(name: str) -> Family:
    """Returns the family module called ``name``.

    Raises:
        UnsupportedModelError: there is none; names the family and the known ones.
    """
    known, module = known_families(), _module_of(name)
    if module not in known:
        shown = name if re.fullmatch(r"[\w.-]{1,64}", name) else repr(name[:64])
        raise UnsupportedModelError(
            f"model family {shown} has no recipe; known families: {', '.join(known)}"
        )
    return cast(Family, importlib.import_module(f"{__name__}.{_ALIASES.get(module, module)}"))


def draft_layer(config: ModelConfig) -> dict[str, Weight]:
    """Returns the own weights of the `MTP_LAYER` that publishers of ``config``'s family may add.

    Their names are those of `head_shapes`; there are none of families without such a layer.
    """
    of_family = getattr(find_family(config.family), "draft_layer", None)
    weights: dict[str, Weight] = {} if of_family is None else of_family(config)
    return weights


def hf_scales(config: ModelConfig, fields: Fields) -> dict[str, tuple[tuple[int, float], ...]]:
    """Returns the `SourceWeight.scales` that ``config.json`` states, by our weight name."""
    of_family = getattr(find_family(config.family), "hf_scales", None)
    scales: dict[str, tuple[tuple[int, float], ...]] = {}
    return scales if of_family is None else scales | of_family(config, fields)


def scales_weights(family: str) -> bool:
    """Whether matrices of ``family`` are multiplied by what config.json states."""
    return hasattr(find_family(family), "hf_scales")


def unread_weights(config: ModelConfig) -> frozenset[str]:
    """Returns stored names of what publishers leave in their files though it changes nothing."""
    ignored: frozenset[str] = getattr(find_family(config.family), "UNREAD", frozenset())
    return unread_kv(config) | ignored


def read_source(ops: Ops[T], encoder: ModelConfig) -> T:
    """Returns what an ``encoder`` makes of its tokens."""
    made: T = find_family(encoder.family).encoder_recipe(ops, encoder)  # type: ignore[attr-defined]
    return made


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns every weight the recipe of ``config`` reads, with its shape (matrices [N, K])."""
    weights = find_family(config.family).weights(config)
    return {name: weight.shape for name, weight in weights.items()}


def matrices(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Returns every matrix the recipe of ``config`` reads, with its shape [N, K]."""
    shapes = weight_shapes(config).items()
    return {name: (shape[0], shape[1]) for name, shape in shapes if len(shape) == 2}
