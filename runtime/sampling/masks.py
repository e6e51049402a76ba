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
    from edgedec.runtime.sampling.thought_budget import ThoughtMarks
    from edgedec.runtime.sampling.thought_mask import ThoughtTokens
    from edgedec.runtime.text.thoughts import State, ThoughtFormat


class Masks:
    """Makes the masks of requests over one tokenizer."""

    def __init__(self, codec: Codec, n_ids: int) -> None:
        """n_ids: the model's logits, of which the last may stand for no token."""
        self._lock = RLock()  # a grammar may take seconds, in which other requests go on
        self._codec = codec
        self._n_ids = n_ids
        self._grammars: Grammars | None = None
        self._spellings: Spellings | None = None
        self._thought_tokens: dict[ThoughtFormat, ThoughtTokens] = {}
        self._thought_marks: dict[ThoughtFormat, ThoughtMarks] = {}

    def of(
        self,
        request: GenerationConfig,
        stop_token_ids: frozenset[int],
        thoughts: ThoughtFormat | None = None,
        begins: State = "text",
    ) -> TokenMask | None:
        """Returns the mask that ``request`` asks for, if any.

        thoughts: how the model marks thoughts, which no grammar holds for. begins: where the
        output begins.

        Raises:
            ConfigError: A grammar is broken or cannot be satisfied, or llguidance is missing.
        """
        mask: TokenMask | None = None
        if request.prefix or request.constraint is not None:
            with self._lock:
                mask = self._make(request, stop_token_ids)
                if thoughts is not None and thoughts.is_known and begins != "text":
                    mask = self._after_thought(request, mask, stop_token_ids, thoughts, begins)
        if request.thought_budget is not None and thoughts is not None:
            with self._lock:
                mask = _both(mask, self._budget(request.thought_budget, thoughts, begins))
        if not request.sampling.is_banning:
            return mask
        from edgedec.runtime.sampling.bans import Bans

        return _both(mask, Bans(request.sampling, self._n_ids, stop_token_ids))

    def _budget(self, n_tokens: int, thoughts: ThoughtFormat, begins: State) -> TokenMask:
        from edgedec.runtime.sampling.thought_budget import ThoughtBudget, ThoughtMarks

        if thoughts not in self._thought_marks:
            marks = ThoughtMarks(self._codec, self._spelt(), thoughts)
            self._thought_marks[thoughts] = marks
        return ThoughtBudget(self._thought_marks[thoughts], n_tokens, begins)

    def _after_thought(
        self,
        request: GenerationConfig,
        mask: TokenMask | None,
        stop_token_ids: frozenset[int],
        thoughts: ThoughtFormat,
        begins: State,
    ) -> TokenMask | None:
        """Returns a mask that begins where the answer does.

        A prefix begins the whole output, and so does a grammar that writes the headers of parts.
        """
        has_headers = thoughts.header is not None and thoughts.header[0] in (request.grammar or "")
        if mask is None or request.prefix or has_headers:
            return mask
        from edgedec.runtime.sampling.thought_mask import ThoughtMask, ThoughtTokens

        if thoughts not in self._thought_tokens:
            tokens = ThoughtTokens(self._codec, self._spelt(), thoughts)
            self._thought_tokens[thoughts] = tokens
        return ThoughtMask(mask, self._thought_tokens[thoughts], begins, stop_token_ids)

    def _spelt(self) -> Spellings:
        from edgedec.runtime.sampling.prefix_mask import Spellings

        if self._spellings is None:
            self._spellings = Spellings(self._codec, self._n_ids)
        return self._spellings

    def _make(self, request: GenerationConfig, stop_token_ids: frozenset[int]) -> TokenMask | None:
        if request.prefix:
            from edgedec.runtime.sampling.prefix_mask import PrefixMask

            return PrefixMask(self._spelt(), request.prefix)
        if self._grammars is None:
            from edgedec.runtime.sampling.grammar import Grammars

            self._grammars = Grammars(self._codec, self._n_ids)
        return self._grammars.mask(request, stop_token_ids)


def _both(first: TokenMask | None, second: TokenMask) -> TokenMask:
    """Returns the mask of what both allow."""
    from edgedec.runtime.sampling.bans import Both

    return second if first is None else Both(first, second)
