"""Prompts that are answered before they are read to the end.

The first layers read the prompt exactly; what later layers would keep of it is predicted from
their hidden states. `ProgressivePrefill` writes provisional tokens from that, then computes the
later layers after all, the provisional tokens with them, and keeps those that plain decoding
writes, too. `PredictedPrefill` stays with the predictions.

Source: KV Prediction (arXiv 2410.08391); here the auxiliary model is the model's own first layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgedec.models.kv_maps import N_SINKS
from edgedec.runtime.config.generation import AUTO, PREDICTED
from edgedec.runtime.decoding.prefilling import Prefilling, Provisional
from edgedec.runtime.decoding.strategy import DecodeState
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.model import KVPredictor
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import (
    PREFILL_CHUNK,
    Prefilled,
    PrefillRequest,
    rewind,
)
from edgedec.runtime.sequences.rows import Float32, Rows
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.common_prefix import common_prefix

PROVISIONAL_TOKENS = 8
"""Most tokens written before the prompt is read to the end."""

N_COMPUTED = 16
"""Last tokens of the prompt, whose rows are computed over the predicted ones before them."""

MIN_TOKENS = 256
"""Tokens still to read below which ``auto`` reads a prompt at once: little could be won."""

MAX_SHARE = 0.65
"""Of the layers, read before the first provisional token: with the maps, that token's own pass and
the last rows, by count of multiplications, still less than 0.7 of an exact prefill."""

MAX_HIDDEN_BYTES = 512 << 20
"""Hidden states of a prompt that are kept; longer prompts are read at once."""


class OwnLayers:
    """A model's own first layers, and maps from their hidden states."""

    def __init__(self, predictor: KVPredictor) -> None:
        self._predictor = predictor

    def begin(self, state: DecodeState, request: PrefillRequest) -> Prefilling | None:
        """Returns how the prompt of ``state`` is answered early; None if reading it is better."""
        mode, predictor = state.config.prefill, self._predictor
        n_left = len(state.tokens) - common_prefix(state.sequence.tokens, state.tokens)
        if n_left < (MIN_TOKENS if mode == AUTO else N_SINKS + N_COMPUTED + 1):
            return None
        if mode == PREDICTED:
            return PredictedPrefill(state, request, predictor)
        is_large = n_left * 4 * predictor.hidden_size > MAX_HIDDEN_BYTES
        if is_large or (mode == AUTO and not _pays(state, predictor)):
            return None
        return ProgressivePrefill(state, request, predictor)


def _pays(state: DecodeState, predictor: KVPredictor) -> bool:
    """Says whether the first token comes soon enough to be worth the provisional ones."""
    return predictor.depth / state.sequence.model.n_layers <= MAX_SHARE


class _EarlyLayers:
    """The first layers over a prompt, and predicted rows of the others."""

    def __init__(self, state: DecodeState, request: PrefillRequest, predictor: KVPredictor) -> None:
        self.state = state
        self.request = request
        self.predictor = predictor
        self.hidden: list[Float32] = []  # of the partial tokens, behind the first layers
        self.chunks: dict[int, list[Float32]] = {layer: [] for layer in request.hidden_layers}

    @property
    def depth(self) -> int:
        return self.predictor.depth

    def read_sinks(self, prompt: Sequence[int]) -> Passes[None]:
        """Computes the first tokens of a text exactly."""
        sequence = self.state.sequence
        self.request.counts.n_reused_tokens = rewind(sequence, prompt)
        if sequence.n_tokens < N_SINKS:
            sinks = TokenTree.chain(prompt[sequence.n_tokens : N_SINKS])
            rows = yield Pass(sequence, sinks, (), tuple(self.chunks), with_logits=False)
            sequence.commit(range(len(sinks)))
            self.note(rows)
            self.request.counts.n_prefill_tokens += len(sinks)

    def read(self, tokens: Sequence[int]) -> Passes[None]:
        """Computes the first layers of the tokens behind the partial ones; predicts the others."""
        sequence, depth = self.state.sequence, self.depth
        early = [layer for layer in self.chunks if layer <= depth]
        rows = yield Pass(
            sequence, TokenTree.chain(tokens), (), tuple({*early, depth}), layers=range(depth)
        )
        sequence.commit(range(len(tokens)))
        self.note(rows)
        self.hidden.append(rows.hidden[depth].copy())
        sequence.predict(self.predictor, self.hidden[-1])

    def note(self, rows: Rows) -> None:
        """Keeps the hidden states that were asked for."""
        for layer, chunks in self.chunks.items():
            if layer in rows.hidden:
                chunks.append(rows.hidden[layer].copy())

    def report(self, done: float) -> None:
        """Tells how much of the prompt's work is done."""
        if self.request.on_progress is not None:
            n_prompt = self.state.n_prompt
            self.request.on_progress("prefill", int(done * n_prompt), n_prompt)


class ProgressivePrefill:
    """Provisional tokens first, then the prompt to its end; what is left in the end is exact."""

    is_exact = True

    def __init__(self, state: DecodeState, request: PrefillRequest, predictor: KVPredictor) -> None:
        self._early = _EarlyLayers(state, request, predictor)
        self._state = state
        self._request = request
        self._n_layers = state.sequence.model.n_layers
        self._drafts: list[int] = []
        self._rows: Rows | None = None  # approximate ones, after the last token
        self._is_done = False

    def step(self, noise: Noise) -> Passes[Prefilled | Provisional | None]:
        if self._rows is None:
            if not (yield from self._read_early()):
                return None
            self._rows = yield from self._look(min(N_COMPUTED, len(self._state.sequence.partial)))
        elif not self._is_done:
            yield from self._early.read(self._drafts[-1:])
            self._rows = yield from self._look(1)
        if self._request.is_cancelled():
            return None
        if not self._is_done and self._draft(noise):
            return Provisional(tuple(self._drafts))
        return (yield from self._read_late(noise))

    def _read_early(self) -> Passes[bool]:
        """Computes the first layers of the whole prompt; returns False when cancelled."""
        state, early = self._state, self._early
        prompt, sequence = state.tokens, state.sequence
        yield from early.read_sinks(prompt)
        share = early.depth / self._n_layers
        for start in range(sequence.n_tokens, len(prompt), PREFILL_CHUNK):
            if self._request.is_cancelled():
                return False
            chunk = prompt[start : start + PREFILL_CHUNK]
            yield from early.read(chunk)
            early.report(share * (start + len(chunk)) / len(prompt))
        return True

    def _look(self, n: int) -> Passes[Rows]:
        """Returns the row after the last of the partial tokens, whose rows are approximate."""
        sequence = self._state.sequence
        n_skipped = len(sequence.partial) - n
        rows = yield Pass(
            sequence,
            TokenTree.chain(sequence.partial[n_skipped:]),
            (n - 1,),
            with_logits=self._state.needs_logits,
            layers=range(self._early.depth, self._n_layers),
            entry=_last(self._early.hidden, n),
            n_skipped=n_skipped,
        )
        return rows

    def _draft(self, noise: Noise) -> bool:
        """Adds the next provisional token; returns False where there shall be none."""
        state = self._state
        assert self._rows is not None
        room = min(PROVISIONAL_TOKENS, state.n_left - 1, state.sequence.context - len(state.tokens))
        if len(self._drafts) < room:
            token = state.pick_from(self._rows, 0, noise, self._drafts)
            if token not in state.stop_token_ids:
                self._drafts.append(token)
                self._is_done = len(self._drafts) == room
                return True
        return False

    def _read_late(self, noise: Noise) -> Passes[Prefilled | None]:
        """Computes the later layers of everything, and keeps the drafts that are right."""
        state, sequence = self._state, self._state.sequence
        hidden = np.concatenate(self._early.hidden)
        # The last draft has no rows: nothing was drafted behind it.
        drafts = self._drafts[: len(state.sequence.partial) + sequence.n_tokens - len(state.tokens)]
        late = range(self._early.depth, self._n_layers)
        layers = tuple(layer for layer in self._early.chunks if layer > self._early.depth)
        while not self._request.is_cancelled():
            n_left = len(sequence.partial) - len(drafts)
            is_last = n_left <= PREFILL_CHUNK
            n = n_left + len(drafts) if is_last else PREFILL_CHUNK
            entry, hidden = hidden[:n], hidden[n:]
            rows = yield Pass(
                sequence,
                TokenTree.chain(sequence.partial[:n]),
                range(n_left - 1, n) if is_last else (),
                layers,
                with_logits=is_last and self._request.with_logits,
                layers=late,
                entry=entry,
            )
            if is_last:
                return self._judge(rows, n_left, drafts, noise)
            self._early.note(rows)
            sequence.commit(range(n))
            self._request.counts.n_prefill_tokens += n
            share = late.start / self._n_layers
            self._early.report(share + (1 - share) * sequence.n_tokens / len(state.tokens))
        return None

    def _judge(self, rows: Rows, n: int, drafts: Sequence[int], noise: Noise) -> Prefilled:
        """Commits the prompt's last ``n`` tokens and the drafts that plain decoding gives, too."""
        state, path = self._state, list[int]()
        for i, draft in enumerate(self._drafts):
            if i < len(rows.stats.argmax) and draft == state.pick_from(rows, i, noise, path):
                path.append(draft)
            else:
                break
        kept = path[: len(drafts)]
        state.sequence.commit(range(n + len(kept)))
        state.sequence.truncate(state.sequence.n_tokens)
        self._request.counts.n_prefill_tokens += n
        self._early.note(rows)
        n_hidden = state.sequence.n_tokens - self._request.counts.n_reused_tokens
        whole = {i: np.concatenate(chunks)[:n_hidden] for i, chunks in self._early.chunks.items()}
        return Prefilled(rows.only(len(kept)), whole, tuple(kept), tuple(self._drafts), len(path))


class PredictedPrefill:
    """The first layers and predictions, for good: approximate."""

    is_exact = False

    def __init__(self, state: DecodeState, request: PrefillRequest, predictor: KVPredictor) -> None:
        self._early = _EarlyLayers(state, request, predictor)
        self._state = state
        self._request = request

    def step(self, noise: Noise) -> Passes[Prefilled | Provisional | None]:
        state, early = self._state, self._early
        prompt, sequence = state.tokens, state.sequence
        yield from early.read_sinks(prompt)
        stop = max(sequence.n_tokens, len(prompt) - N_COMPUTED)
        for start in range(sequence.n_tokens, stop, PREFILL_CHUNK):
            if self._request.is_cancelled():
                return None
            chunk = prompt[start : min(start + PREFILL_CHUNK, stop)]
            yield from early.read(chunk)
            sequence.adopt_predicted()
            early.hidden.clear()
            self._request.counts.n_prefill_tokens += len(chunk)
            early.report((start + len(chunk)) / len(prompt))
        rows = yield Pass(
            sequence,
            TokenTree.chain(prompt[stop:]),
            (len(prompt) - stop - 1,),
            with_logits=self._request.with_logits,
        )
        sequence.commit(range(len(prompt) - stop))
        self._request.counts.n_prefill_tokens += len(prompt) - stop
        return Prefilled(rows)


def _last(parts: Sequence[Float32], n: int) -> Float32:
    """Returns the last ``n`` rows of ``parts`` put together."""
    chunks: list[Float32] = []
    for part in reversed(parts):
        chunks.insert(0, part)
        if sum(map(len, chunks)) >= n:
            break
    whole: Float32 = np.concatenate(chunks)[-n:]
    return whole
