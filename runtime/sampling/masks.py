"""The masks that requests ask for; what they are made of waits until one is."""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.sampling.token_mask import TokenMask
from edgedec.runtime.text.tokenizer import Codec

if TYPE_CHECKING:
    from edgedec.runtime.sampling.grammar import Grammars
    from edgedec.runtime.sampling.prefix_mask import Spellings


class Masks:
    """Makes the masks of requests over one tokenizer."""

    def __init__(self, codec: Codec, n_ids: int) -> None:
        """n_ids: the model's logits, of which the last may stand for no token."""
        self._lock = RLock()  # a grammar may take seconds, in which other requests go on
        self._codec = codec
        self._n_ids = n_ids
        self._grammars: Grammars | None = None
        self._spellings: Spellings | None = None

    def of(self, request: GenerationConfig, stop_token_ids: frozenset[int]) -> TokenMask | None:
        """Returns the mask that ``request`` asks for, if any.

        Raises:
            ConfigError: A grammar is broken or cannot be satisfied, or llguidance is missing.
        """
        mask: TokenMask | None = None
        if request.prefix or request.constraint is not None:
            with self._lock:
                mask = self._make(request, stop_token_ids)
        if not request.sampling.is_banning:
            return mask
        from edgedec.runtime.sampling.bans import Bans, Both

        bans = Bans(request.sampling, self._n_ids, stop_token_ids)
        return bans if mask is None else Both(mask, bans)

    def _make(self, request: GenerationConfig, stop_token_ids: frozenset[int]) -> TokenMask | None:
        if request.prefix:
            from edgedec.runtime.sampling.prefix_mask import PrefixMask, Spellings

            if self._spellings is None:
                self._spellings = Spellings(self._codec, self._n_ids)
            return PrefixMask(self._spellings, request.prefix)
        if self._grammars is None:
            from edgedec.runtime.sampling.grammar import Grammars

            self._grammars = Grammars(self._codec, self._n_ids)
        return self._grammars.mask(request, stop_token_ids)
