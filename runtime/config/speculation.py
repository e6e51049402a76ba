"""How much a round of a drafting method may draft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from edgedec.models.errors import LARGER_CONTEXT, ConfigError
from edgedec.runtime.config.checks import check_count, refuse_unknown

MAX_DRAFT_LEN = 63
"""Largest `draft_len` and `depth` of a request."""


@dataclass(frozen=True, kw_only=True)
class SpeculationConfig:
    """How much a round of a drafting method may draft. None: as the method decides.

    draft_len: most tokens in all, at most 63; ``auto`` drafts no more than 15, whatever it says.
    depth: most of them one after the other.
    """

    draft_len: int | None = None
    depth: int | None = None

    def __post_init__(self) -> None:
        for name in ("draft_len", "depth"):
            value = getattr(self, name)
            if value is None:
                continue
            check_count(name, value, 1, "method plain drafts nothing")
            if value > MAX_DRAFT_LEN:
                raise ConfigError(
                    f"{name} is {value}, expected at most {MAX_DRAFT_LEN}: passes over more rows "
                    "take longer than drafts save"
                )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the config stated by ``fields``; unknown keys are a ConfigError."""
        refuse_unknown(cls, fields)
        return cls(**fields)

    def check_context(self, context: int) -> None:
        """Raises a ConfigError if a round may draft more than ``context`` has room for."""
        for name in ("draft_len", "depth"):
            value = getattr(self, name)
            if value is not None and value >= context:
                raise ConfigError(
                    f"{name} is {value}, expected less than {context}, the positions of the "
                    f"context: draft less, or use {LARGER_CONTEXT}"
                )
