"""Prompts that a smaller model reads for the target model, whose keys and values are predicted.

`AuxiliaryPrefill` stays with the predictions. `ConfirmedPrefill` writes provisional tokens from
them, then has the target model read the prompt, too, and keeps those that plain decoding writes.

Source: KV Prediction (arXiv 2410.08391), with maps in closed form.
"""

from __future__ import annotations

from edgedec.models.config import ModelConfig
from edgedec.models.kv_maps import N_SINKS
from edgedec.runtime.config.generation import PREDICTED
from edgedec.runtime.decoding.prefilling import Prefilling, Provisional
from edgedec.runtime.decoding.progressive import N_COMPUTED, PROVISIONAL_TOKENS
from edgedec.runtime.decoding.strategy import DecodeState
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.model import KVPredictor
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.plain_kv import plain_kv
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.sequences.prefill import (
    PREFILL_CHUNK,
    ExactPrefiller,
    Prefilled,
    PrefillRequest,
    feed,
    rewind,
)
from edgedec.runtime.sequences.rows import Float32, Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.common_prefix import common_prefix


class AuxiliaryModel:
    """A smaller model with the target model's tokens, and maps from what it keeps of a text."""

    def __init__(self, pool: SequencePool, config: ModelConfig, maps: KVPredictor) -> None:
        """pool: of the smaller model. config: its own."""
        self.pool = pool
        self._config = config
        self._maps = maps

    def extend(self, target: TokenSequence, reader: TokenSequence, stop: int) -> None:
        """Predicts the rows up to ``stop`` that ``target`` lacks from those of ``reader``.

        reader: of the smaller model, with the same tokens.
        """
        start = target.n_tokens
        features: Float32 = plain_kv(
            reader.snapshot(stop, start).kv_rows, self._config, start=start
        )
        target.append_predicted(reader.tokens[start:stop], self._maps, features)

    def begin(self, state: DecodeState, request: PrefillRequest) -> Prefilling | None:
        """Returns how the prompt of ``state`` is answered early; None if nothing is won."""
        n_left = len(state.tokens) - common_prefix(state.sequence.tokens, state.tokens)
        is_short = n_left < N_SINKS + N_COMPUTED + 1
        if is_short or len(state.tokens) > self.pool.context or request.hidden_layers:
            return None
        kind = AuxiliaryPrefill if state.config.prefill == PREDICTED else ConfirmedPrefill
        return kind(state, request, self)


class AuxiliaryPrefill:
    """Predictions for good: approximate."""

    is_exact = False

    def __init__(
        self, state: DecodeState, request: PrefillRequest, auxiliary: AuxiliaryModel
    ) -> None:
        self._state = state
        self._request = request
        self._auxiliary = auxiliary

    def step(self, noise: Noise) -> Passes[Prefilled | Provisional | None]:
        rows = yield from self._read()
        return None if rows is None else Prefilled(rows)

    def _read(self) -> Passes[Rows | None]:
        """Returns the row after the prompt, over predicted ones; None when cancelled."""
        state, counts = self._state, self._request.counts
        prompt, sequence = state.tokens, state.sequence
        counts.n_reused_tokens = rewind(sequence, prompt)
        if sequence.n_tokens < N_SINKS:
            yield from feed(sequence, prompt[:N_SINKS], with_logits=False)
        stop = max(sequence.n_tokens, len(prompt) - N_COMPUTED)
        reader = self._auxiliary.pool.take(prompt, sequence.group)
        try:
            known = max(rewind(reader, prompt[:stop]), sequence.n_tokens)
            for end in range(known + PREFILL_CHUNK, stop + PREFILL_CHUNK, PREFILL_CHUNK):
                if self._request.is_cancelled():
                    return None
                yield from feed(reader, prompt[: min(end, stop)], with_logits=False)
                self._auxiliary.extend(sequence, reader, reader.n_tokens)
                self._report()
        finally:
            self._auxiliary.pool.give_back(reader)
        tail = TokenTree.chain(prompt[stop:])
        needs_logits = self._request.with_logits
        rows = yield Pass(sequence, tail, (len(tail) - 1,), with_logits=needs_logits)
        sequence.commit(range(len(tail)))
        counts.n_prefill_tokens = len(prompt) - counts.n_reused_tokens
        return rows

    def _report(self) -> None:
        if self._request.on_progress is not None:
            done, n_prompt = self._state.sequence.n_tokens, self._state.n_prompt
            self._request.on_progress("prefill", done, n_prompt)


class ConfirmedPrefill(AuxiliaryPrefill):
    """Provisional tokens from predictions, then the prompt itself: exact in the end."""

    is_exact = True

    def __init__(
        self, state: DecodeState, request: PrefillRequest, auxiliary: AuxiliaryModel
    ) -> None:
        super().__init__(state, request, auxiliary)
        self._drafts: list[int] = []
        self._is_done = False

    def step(self, noise: Noise) -> Passes[Prefilled | Provisional | None]:
        if self._is_done:
            return (yield from self._confirm(noise))
        if not self._drafts:
            rows = yield from self._read()
        else:
            rows = yield from self._go_on()
        if rows is None or self._request.is_cancelled():
            self._forget()
            return None
        state = self._state
        room = min(PROVISIONAL_TOKENS, state.n_left - 1, state.sequence.context - len(state.tokens))
        token = state.pick_from(rows, 0, noise, self._drafts) if room > 0 else None
        if token is None or token in state.stop_token_ids:
            return (yield from self._confirm(noise))
        self._drafts.append(token)
        self._is_done = len(self._drafts) == room
        return Provisional(tuple(self._drafts))

    def _go_on(self) -> Passes[Rows]:
        """Returns the row after the last provisional token."""
        state = self._state
        rows = yield Pass(
            state.sequence,
            TokenTree.chain(self._drafts[-1:]),
            (0,),
            with_logits=state.needs_logits,
        )
        state.sequence.commit((0,))
        return rows

    def _forget(self) -> None:
        """Leaves exact rows only."""
        self._state.sequence.rewind(self._state.sequence.n_exact)

    def _confirm(self, noise: Noise) -> Passes[Prefilled | None]:
        """Reads the prompt, and the provisional tokens where the first of them is right."""
        state, drafts = self._state, self._drafts
        counts = self._request.counts
        self._forget()
        n_reused = counts.n_reused_tokens
        counts.n_prefill_tokens = state.sequence.n_tokens - n_reused
        prefilled = yield from ExactPrefiller().prefill(state.sequence, state.tokens, self._request)
        counts.n_reused_tokens = n_reused
        if prefilled is None or not drafts:
            return prefilled
        if state.pick_from(prefilled.rows, 0, noise) != drafts[0]:
            return Prefilled(prefilled.rows, provisional=tuple(drafts))
        rows = yield Pass(
            state.sequence,
            TokenTree.chain(drafts),
            range(len(drafts)),
            with_logits=self._request.with_logits,
        )
        path = drafts[:1]
        for i, draft in enumerate(drafts[1:]):
            if draft != state.pick_from(rows, i, noise, path):
                break
            path.append(draft)
        state.sequence.commit(range(len(path)))
        return Prefilled(rows.only(len(path) - 1), {}, tuple(path), tuple(drafts), len(path))
