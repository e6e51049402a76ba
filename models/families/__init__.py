"""Model families: one module per family, named as its ``model_type`` (GGUF: architecture).

A module is found by its name; there is no list to edit. Modules with a leading underscore hold
what families share.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Protocol, cast

from edgedec.models.config import ModelConfig
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families._fields import Fields
from edgedec.models.families._gguf import ROPE_FACTORS, GgufFacts
from edgedec.models.weights import WeightMap

__all__ = ["ROPE_FACTORS", "Family", "Fields", "GgufFacts", "find_family", "known_families"]


class Family(Protocol):
    """What a family module defines."""

    def read_hf(self, fields: Fields) -> ModelConfig:
        """Returns the config that a Hugging Face ``config.json`` states."""

    def read_gguf(self, facts: GgufFacts) -> ModelConfig:
        """Returns the config that a GGUF header states."""

    def map_hf(self, config: ModelConfig) -> WeightMap:
        """Returns where each weight lies in safetensors files."""

    def map_gguf(self, config: ModelConfig) -> WeightMap:
        """Returns where each weight lies in a GGUF file."""


def known_families() -> tuple[str, ...]:
    """Returns the names of all families, sorted."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in names if not name.startswith("_")))


def find_family(name: str) -> Family:
    """Returns the family module called ``name``.

    Raises:
        UnsupportedModelError: there is none; names the family and the known ones.
    """
    known = known_families()
    if name not in known:
        shown = name if re.fullmatch(r"[\w.-]{1,64}", name) else repr(name[:64])
        raise UnsupportedModelError(
            f"model family {shown} has no recipe; known families: {', '.join(known)}"
        )
    return cast(Family, importlib.import_module(f"{__name__}.{name}"))
