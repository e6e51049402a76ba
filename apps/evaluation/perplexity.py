"""Task `perplexity`: how well a model predicts a text that it is shown token by token.

The text is cut into windows of `window` tokens; each begins with an empty KV cache, and with the
model's start token where it wants one, which counts towards the window. Windows begin `stride`
tokens apart, and each scores the tokens no window before it scored: the first one all its tokens
but the very first (which nothing predicts, unless there is a start token), the others their last
`stride` ones. So every token is scored once, after at least `window - stride` others except in the
first window. A sample is a window; the mean is over tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.apps.evaluation.samples import Sample, Setting
from edgedec.apps.evaluation.work import OneAtATime
from edgedec.models.errors import ConfigError
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

_CHUNK = 64
"""Tokens per pass: a chunk's logits take _CHUNK rows of the vocabulary's width."""


@dataclass(frozen=True)
class ScoredWindow:
    """Tokens ``start`` to ``end`` of a text, of which those from ``scored`` on count here."""

    start: int
    scored: int
    end: int

    @property
    def n_scored(self) -> int:
        """Tokens that count here."""
        return self.end - self.scored


def cut(n_tokens: int, window: int, stride: int, n_opening: int) -> Iterator[ScoredWindow]:
    """Yields the windows of a text.

    Raises:
        ConfigError: The numbers make no sense.
    """
    room = window - n_opening
    if window < 2:
        raise ConfigError(f"--window is {window}, expected at least 2")
    if not 1 <= stride < window:
        raise ConfigError(
            f"--stride is {stride}, expected 1 to {window - 1}, so that every token follows another"
        )
    scored = 0 if n_opening else 1
    if n_tokens <= scored:
        raise ConfigError(f"the text has {n_tokens} tokens, expected at least {scored + 1}")
    end = 0
    while end < n_tokens:
        end = min(n_tokens, room if end == 0 else end + stride)
        yield ScoredWindow(max(0, end - room), scored, end)
        scored = end


def score(
    sequence: TokenSequence, tokens: Sequence[int], window: ScoredWindow, opening: Sequence[int]
) -> tuple[float, float]:
    """Returns the nats that a window's scored tokens take together, and the seconds it took."""
    started_s = time.perf_counter()
    ids = [*opening, *tokens[window.start : window.end]]
    first = window.scored - window.start + len(opening)  # index in ids of the first scored token
    sequence.truncate(0)
    nats = 0.0
    for start in range(0, len(ids) - 1, _CHUNK):
        chunk = ids[start : min(start + _CHUNK, len(ids) - 1)]
        logit_rows = [i for i in range(len(chunk)) if start + i + 1 >= first]
        rows = sequence.forward(TokenTree.chain(chunk), logit_rows)
        followers = [ids[start + i + 1] for i in logit_rows]
        chosen = rows.logits[np.arange(len(logit_rows)), followers].astype(np.float64)
        nats += float(np.sum(rows.stats.log_sum_exp.astype(np.float64) - chosen))
        sequence.commit(range(len(chunk)))
    return nats, time.perf_counter() - started_s


@dataclass
class Predictions(OneAtATime):
    """Has a text predicted, window by window."""

    WHY = "perplexity reads one window after the other"  # more rows make a pass no cheaper

    tokens: Sequence[int]
    windows: Sequence[ScoredWindow]
    opening: tuple[int, ...]

    @property
    def names(self) -> Sequence[str]:
        """Positions scored in each window, such as `256-512`."""
        return [f"{window.scored}-{window.end}" for window in self.windows]

    def take(self, setting: Setting, index: int) -> Sample:
        """Returns the mean surprise at the tokens of a window. Units: nats."""
        window = self.windows[index]
        sequence = self.engines.of(setting).new_sequence()
        nats, seconds = score(sequence, self.tokens, window, self.opening)
        sequence.close()
        return Sample(
            fingerprint=setting.fingerprint,
            name=self.names[index],
            metrics={"nats": nats / window.n_scored},
            weight=window.n_scored,
            seconds=seconds,
            n_prompt_tokens=window.end - window.start,
        )
