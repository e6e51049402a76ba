"""What is offered at the cursor, and what came of it."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from edgedec.runtime.engine.result import GenerationResult


@dataclass(frozen=True)
class Offer:
    """A suggestion.

    text: to be put in at the cursor.
    version: number of the `Autocompleter.update` that it is for.
    is_complete: it will not grow any more.
    probability: of the text, by the model; of what is left of it where some was typed already.
    ms: from the update to this.
    parts: the text in pieces, each with its origin: "target", the drafter that proposed its last
        token, or "draft" where that model wrote it.
    """

    text: str
    version: int
    is_complete: bool
    probability: float
    ms: float
    parts: tuple[tuple[str, str], ...] = ()


@dataclass
class TypingCounts:
    """What an autocompleter did.

    n_updates: keys, or other changes. n_agreeing: of these, those that typed what was on offer, so
    that nothing had to be computed. n_requests: texts that were begun. n_stopped: that the next
    key ended. n_prompt, n_reused: tokens of their prompts, as far as those were read, and how
    many of those had been computed before. n_computed: new tokens. n_shown: of these, those that
    were on offer. n_drafted, n_accepted: tokens that drafters proposed, and those of them that were
    kept. origins: new tokens by who wrote them, as of `Offer.parts`. wait_ms: of the latest
    updates, until what was being computed for older ones had made way. cancel_ms: of the latest
    passes that were ended in their midst, until they had.
    """

    n_updates: int = 0
    n_agreeing: int = 0
    n_requests: int = 0
    n_stopped: int = 0
    n_prompt: int = 0
    n_reused: int = 0
    n_computed: int = 0
    n_shown: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    origins: Counter[str] = field(default_factory=Counter)
    wait_ms: deque[float] = field(default_factory=lambda: deque(maxlen=4096))
    cancel_ms: deque[float] = field(default_factory=lambda: deque(maxlen=4096))

    def add(self, result: GenerationResult, n_shown: int) -> None:
        """A text has ended, of which ``n_shown`` tokens were on offer."""
        stats = result.stats
        self.n_prompt += stats.n_reused_tokens + stats.n_prefill_tokens
        self.n_reused += stats.n_reused_tokens
        self.n_computed += len(result.token_ids)
        self.n_shown += n_shown
        self.n_drafted += stats.n_proposed
        self.n_accepted += stats.n_accepted
        self.origins.update(result.origins)
