"""Tokens that end repetitions, by the texts that do."""

from __future__ import annotations

from functools import lru_cache

from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.text.tokenizer import Codec

_MAX_KEPT = 8


class Breakers:
    """Finds the tokens of one tokenizer. The latest answers are kept."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._breakers = lru_cache(maxsize=_MAX_KEPT)(self._find)

    def of(self, sampling: SamplingConfig) -> frozenset[int]:
        """Returns the tokens with one of the breakers in their text; none unless DRY is on."""
        if not sampling.dry_multiplier:
            return frozenset()
        return self._breakers(sampling.dry_sequence_breakers)

    def _find(self, texts: tuple[str, ...]) -> frozenset[int]:
        breakers = [text.encode(errors="replace") for text in texts]
        return frozenset(
            token
            for token, spelling in self._codec.spellings().items()
            if isinstance(spelling, bytes) and any(text in spelling for text in breakers)
        )
