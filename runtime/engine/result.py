"""What one generation returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from edgedec.runtime.drafting.stats import DecodeStats
from edgedec.runtime.sampling.logprobs import TextLogprob, TokenLogprob

FinishReason = Literal["stop", "length", "cancelled", "context"]
"""A stop token or text; max_new_tokens; stopped by the caller; no room for another token."""


_SHOWN = 60
"""Characters of a text in its short form."""

UP_TO_TIES: Literal["up to ties"] = "up to ties"
"""What a lossless method gives where a row's logits depend on the other rows of its pass."""


@dataclass(frozen=True, repr=False)
class GenerationResult:
    """One finished output and what it took.

    text: without stop text and special tokens.
    token_ids: every token emitted, a final stop token included.
    origins: for each token the drafter that proposed it, or "target"; of switching the model that
        gave it, "draft" or "target".
    load_ms: time to load the bundle, before this generation.
    ttft_ms: from the request to its first token.
    tpot_ms: mean time of each later token, (total - ttft) / (n - 1); 0 for a single token.
    stop_text: the stop text that ended the output; empty if something else did.
    stop_token: the stop token that ended it; None if something else did.
    reasoning: what the model thought before it answered; no part of ``text``.
    n_reasoning_tokens: tokens of thoughts and their marks.
    text_logprobs: of the tokens that ``text`` consists of; without thoughts and stop texts.
    is_in_order: tokens were found from left to right, not in any order as masks are filled in.
    peak_rss_mb: most memory the process has had resident. Units: 10**6 bytes.
    provisional_ms: from the request to its first provisional token; 0 where there was none.
    lossless: whether the text is what plain decoding gives; ``up to ties``: where no two tokens
        are closer than ``largest_gap``, by which a logit was seen to differ with the other rows of
        a pass. That is 0 for the other two.
    logprobs: of each of ``token_ids``, if the request asked for them.
    switch: what switching did, see `Switching.summary`; empty for methods that do not switch.
    """

    text: str
    token_ids: tuple[int, ...]
    origins: tuple[str, ...]
    finish_reason: FinishReason
    n_prompt_tokens: int
    load_ms: float
    ttft_ms: float
    tpot_ms: float
    peak_rss_mb: float
    method: str
    lossless: bool | Literal["up to ties"]
    stats: DecodeStats
    switch: dict[str, Any] = field(default_factory=dict)
    provisional_ms: float = 0.0
    largest_gap: float = 0.0
    logprobs: tuple[TokenLogprob, ...] = ()
    is_in_order: bool = True
    stop_text: str = ""
    stop_token: int | None = None
    reasoning: str = ""
    n_reasoning_tokens: int = 0
    text_logprobs: tuple[TextLogprob, ...] = ()

    def __repr__(self) -> str:
        """Returns the result in short: the fields have all of it."""
        text = self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}..."
        return f"GenerationResult({text!r}, {self.n_new_tokens} new tokens, {self.finish_reason})"

    @property
    def n_new_tokens(self) -> int:
        """Tokens that were generated."""
        return len(self.token_ids)

    @property
    def tokens_per_s(self) -> float:
        """Rate of decoding, 1000 / tpot_ms: the first token and prefill excluded; 0 for one token.

        Masks are filled in without a prefill, and most of the text may appear with its first
        token: then all tokens count, and all of the time.
        """
        if self.is_in_order:
            return 1000.0 / self.tpot_ms if self.tpot_ms > 0 else 0.0
        total_ms = self.ttft_ms + self.tpot_ms * max(0, self.n_new_tokens - 1)
        return 1000.0 * self.n_new_tokens / total_ms if total_ms > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Returns the document `edgedec run --json` prints."""
        return {
            "text": self.text,
            "reasoning": self.reasoning,
            "token_ids": list(self.token_ids),
            "origins": list(self.origins),
            "finish_reason": self.finish_reason,
            "stop_text": self.stop_text,
            "stop_token": self.stop_token,
            "n_prompt_tokens": self.n_prompt_tokens,
            "n_new_tokens": self.n_new_tokens,
            "n_reasoning_tokens": self.n_reasoning_tokens,
            "load_ms": self.load_ms,
            "ttft_ms": self.ttft_ms,
            "provisional_ms": self.provisional_ms,
            "tpot_ms": self.tpot_ms,
            "tokens_per_s": self.tokens_per_s,
            "peak_rss_mb": self.peak_rss_mb,
            "method": self.method,
            "lossless": self.lossless,
            "largest_gap": self.largest_gap,
            "stats": self.stats.to_dict(),
            "switch": dict(self.switch),
        }
