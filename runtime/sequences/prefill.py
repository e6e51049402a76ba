"""How a text gets into a KV cache: the one place that finds common prefixes and cuts chunks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from edgedec.models.errors import PromptTooLongError, SessionError
from edgedec.runtime.sequences.pass_times import LONG_PASS
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.rows import Float32, Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.common_prefix import common_prefix

PREFILL_CHUNK = 128
"""Most tokens per pass: enough to keep the kernels busy."""

_MIN_CHUNK = LONG_PASS

PASS_MS = 250.0
"""What a pass should take at most, so that it can be cancelled within a moment."""

Progress = Callable[[str, int, int], None]
"""Called with a phase and how much of it is done, of how much."""

HiddenStates = Mapping[int, Float32]
"""Layer -> the residual stream after that many layers. Shapes: [T, hidden_size] float32."""


class PrefillCounts(Protocol):
    """Where a prefill counts tokens: those found in the KV cache, and those computed so far."""

    n_reused_tokens: int
    n_prefill_tokens: int


@dataclass(frozen=True, eq=False)
class Prefilled:
    """What a prefill left besides the KV cache.

    rows: row 0 is the one after the prompt. hidden: of the prompt's last tokens, those computed,
    in arrays of their own. confirmed: of the tokens ``provisional``, written before the prompt was
    read to its end, those that follow it; they are in the KV cache, and ``rows`` and ``hidden``
    come after them. n_right: of ``provisional``, those that follow the prompt, where the last may
    not be in the KV cache.
    """

    rows: Rows
    hidden: HiddenStates = field(default_factory=dict)
    confirmed: tuple[int, ...] = ()
    provisional: tuple[int, ...] = ()
    n_right: int = 0


@dataclass(frozen=True)
class PrefillRequest:
    """What is wanted of a prefill.

    with_logits: whether the row's logits are wanted; its statistics always are. hidden_layers:
    layers whose hidden states are wanted. is_cancelled: asked before every chunk. pass_ms: what a
    chunk should take at most. with_mtp: whether `Rows.mtp` is wanted of the row.
    """

    counts: PrefillCounts
    with_logits: bool = True
    hidden_layers: tuple[int, ...] = ()
    is_cancelled: Callable[[], bool] = lambda: False
    on_progress: Progress | None = None
    pass_ms: float = PASS_MS
    with_mtp: bool = False


class ExactPrefiller:
    """Computes what the KV cache does not hold, chunk by chunk."""

    def prefill(
        self, sequence: TokenSequence, prompt: Sequence[int], request: PrefillRequest
    ) -> Passes[Prefilled | None]:
        """Makes ``prompt`` the committed tokens; returns None when cancelled on the way."""
        if (known := _known(sequence, prompt, request)) is not None:
            return known
        request.counts.n_reused_tokens = rewind(sequence, prompt)
        hidden: dict[int, list[Float32]] = {layer: [] for layer in request.hidden_layers}
        while not request.is_cancelled():
            n_before = sequence.n_tokens
            rows = yield from _next_chunk(
                sequence,
                prompt,
                1,
                request.with_logits,
                request.hidden_layers,
                request.pass_ms,
                request.with_mtp,
            )
            for layer, chunks in hidden.items():
                chunks.append(rows.hidden[layer].copy())
            request.counts.n_prefill_tokens += sequence.n_tokens - n_before
            if request.on_progress is not None:
                request.on_progress("prefill", sequence.n_tokens, len(prompt))
            if sequence.n_tokens == len(prompt):
                sequence.keep_row(rows)
                whole = {layer: np.concatenate(chunks) for layer, chunks in hidden.items()}
                return Prefilled(rows, whole)
        return None


def _known(
    sequence: TokenSequence, prompt: Sequence[int], request: PrefillRequest
) -> Prefilled | None:
    """Returns what a prefill of the same prompt left, without a pass; None if it is not known."""
    rows = sequence.row_after(prompt)
    if rows is None or request.is_cancelled():
        return None
    has_logits = len(rows.logits) > 0 or not request.with_logits
    has_mtp = rows.mtp is not None or not request.with_mtp
    has_all = has_logits and has_mtp and rows.hidden.keys() >= set(request.hidden_layers)
    if not has_all or rewind(sequence, prompt, n_rows=0) < len(prompt):
        return None
    request.counts.n_reused_tokens = len(prompt)
    if request.on_progress is not None:
        request.on_progress("prefill", len(prompt), len(prompt))
    rows = rows.copy()
    return Prefilled(rows, {layer: rows.hidden[layer] for layer in request.hidden_layers})


def check_fits(prompt: Sequence[int], context: int, vocab_size: int) -> None:
    """Raises a SessionError unless ``prompt`` is made of the model's tokens and fits."""
    if len(prompt) > context:
        raise PromptTooLongError(len(prompt), context)
    worst = max(prompt) if min(prompt) >= 0 else min(prompt)
    if not 0 <= worst < vocab_size:
        raise SessionError(f"the prompt holds token {worst}, expected 0 to {vocab_size - 1}")


def rewind(sequence: TokenSequence, text: Sequence[int], n_rows: int = 1) -> int:
    """Forgets what is no beginning of ``text``; returns how many of its tokens are committed.

    The last ``n_rows`` never are: the rows after them are wanted, and a pass gives those. None are
    where the text goes back further than layers with a window can.
    """
    return sequence.rewind(min(common_prefix(sequence.tokens, text), len(text) - n_rows))


def feed(
    sequence: TokenSequence,
    text: Sequence[int],
    n_rows: int = 1,
    with_logits: bool = True,
    hidden_layers: Sequence[int] = (),
) -> Passes[Rows]:
    """Makes ``text`` the committed tokens; returns the rows after each of its last ``n_rows``.

    Hidden states of ``hidden_layers`` are those of the last pass: of these tokens, and maybe more
    before them.
    """
    rewind(sequence, text, n_rows)
    ms = 0.0
    while True:
        rows = yield from _next_chunk(sequence, text, n_rows, with_logits, hidden_layers)
        ms += rows.ms
        if sequence.n_tokens == len(text):
            rows.ms = ms
            return rows


def caught_up(sequence: TokenSequence, text: Sequence[int]) -> Passes[int]:
    """Computes what ``sequence`` missed of ``text``; returns how many tokens that were."""
    text = text[: sequence.context]
    n_missed = len(text) - rewind(sequence, text, n_rows=0)
    if n_missed:
        yield from feed(sequence, text, with_logits=False)
    return n_missed


def _next_chunk(
    sequence: TokenSequence,
    text: Sequence[int],
    n_rows: int,
    with_logits: bool,
    hidden_layers: Sequence[int] = (),
    pass_ms: float = PASS_MS,
    with_mtp: bool = False,
) -> Passes[Rows]:
    """Commits the next tokens of ``text``; the last ``n_rows`` come in one pass, the last."""
    start, size = sequence.n_tokens, _chunk_size(sequence, pass_ms)
    is_last = len(text) - start <= max(size, n_rows)
    stop = len(text) if is_last else min(start + size, len(text) - n_rows)
    if start < (n_source := sequence.n_source_of(text)):
        is_last, stop = False, n_source
    chunk = text[start:stop]
    logit_rows = range(len(chunk) - n_rows, len(chunk)) if is_last else ()
    rows = yield Pass(
        sequence,
        TokenTree.chain(chunk),
        logit_rows,
        hidden_layers,
        with_logits=with_logits and is_last,
        with_mtp=with_mtp and is_last,
    )
    if len(chunk) >= _MIN_CHUNK:  # one pass that something else disturbed counts for little
        row_ms = rows.ms / len(chunk)
        sequence.row_ms = min(row_ms, 1.2 * sequence.row_ms) if sequence.row_ms else row_ms
    sequence.commit(range(len(chunk)))
    return rows


def _chunk_size(sequence: TokenSequence, pass_ms: float) -> int:
    """Returns how many tokens fit a pass of ``pass_ms``, or less while other texts are written.

    Of the first pass nothing is known.
    """
    bound_ms = sequence.times.bound_ms(sequence)
    row_ms = sequence.row_ms or sequence.times.row_ms()
    if not row_ms:
        return _MIN_CHUNK if math.isfinite(bound_ms) else PREFILL_CHUNK
    n_fitting = int(min(pass_ms, bound_ms) / row_ms) // _MIN_CHUNK * _MIN_CHUNK
    return min(PREFILL_CHUNK, max(_MIN_CHUNK, n_fitting))
