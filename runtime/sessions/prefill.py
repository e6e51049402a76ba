"""The prompt's passes: what the KV cache lacks, in chunks, so that it can be watched and left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from edgedec.models.errors import SessionError
from edgedec.runtime.sessions.session import ModelSession, Rows, TokenTree

PREFILL_CHUNK = 128
"""Tokens per pass: enough to keep the kernels busy, few enough to cancel within a moment."""

Progress = Callable[[str, int, int], None]
"""Called with a phase and how much of it is done, of how much."""


class PrefillCounts(Protocol):
    """Where `prefill` counts tokens."""

    n_reused_tokens: int
    n_prefill_tokens: int


def check_fits(prompt: Sequence[int], session: ModelSession) -> None:
    """Raises a SessionError unless ``prompt`` is made of the model's tokens and fits it."""
    if len(prompt) > session.context:
        raise SessionError(
            f"the prompt has {len(prompt)} tokens, the context {session.context}: shorten the "
            "prompt, or load or export with a larger context"
        )
    worst = max(prompt) if min(prompt) >= 0 else min(prompt)
    if not 0 <= worst < session.vocab_size:
        raise SessionError(
            f"the prompt holds token {worst}, expected 0 to {session.vocab_size - 1}"
        )


def reuse_prefix(session: ModelSession, prompt: Sequence[int]) -> int:
    """Returns how many of the prompt's tokens stay in the KV cache; forgets the rest of it.

    The last token is always computed anew: its logits are wanted.
    """
    committed = session.tokens
    longest = min(len(committed), len(prompt) - 1)
    n_common = next((i for i in range(longest) if committed[i] != prompt[i]), longest)
    session.truncate(n_common)
    return n_common


def prefill(
    session: ModelSession,
    prompt: Sequence[int],
    stats: PrefillCounts,
    is_cancelled: Callable[[], bool] = lambda: False,
    on_progress: Progress | None = None,
    with_logits: bool = True,
) -> Rows | None:
    """Returns the row after ``prompt``, or None when cancelled between chunks.

    with_logits: whether the row's logits are wanted; its statistics always are.
    """
    stats.n_reused_tokens = reuse_prefix(session, prompt)
    n_prompt = len(prompt)
    while not is_cancelled():
        start = session.n_tokens
        chunk = prompt[start : start + PREFILL_CHUNK]
        is_last = start + len(chunk) == n_prompt
        asked = (len(chunk) - 1,) if is_last else ()
        rows = session.forward(TokenTree.chain(chunk), asked, with_logits=with_logits)
        session.commit(range(len(chunk)))
        stats.n_prefill_tokens += len(chunk)
        if on_progress is not None:
            on_progress("prefill", start + len(chunk), n_prompt)
        if is_last:
            return rows
    return None
