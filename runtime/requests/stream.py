"""One request being served: prefill, steps, stop rules, and the stream its caller holds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from edgedec.models.errors import SessionError
from edgedec.runtime.cores.machine import peak_rss_mb
from edgedec.runtime.decoding.strategy import TARGET, DecodeState, Decoding, DecodingStrategy
from edgedec.runtime.requests.result import FinishReason, GenerationResult
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sessions.passes import Passes
from edgedec.runtime.sessions.prefill import ExactPrefiller, Prefiller, PrefillRequest, Progress
from edgedec.runtime.sessions.sequence import TokenSequence
from edgedec.runtime.sessions.turns import Turns
from edgedec.runtime.switching.policy import Signal
from edgedec.runtime.text.common_prefix import common_prefix
from edgedec.runtime.text.text_stream import TextStream


class Lender(Protocol):
    """Where a stream's sequence is from, as `SequencePool` is."""

    def take(self, text: Sequence[int]) -> TokenSequence:
        """Returns a sequence for ``text``."""

    def give_back(self, sequence: TokenSequence) -> None:
        """Takes it back."""


@dataclass(frozen=True)
class Request:
    """What a stream needs to know besides its state.

    started_s: `time.perf_counter` when the caller asked.
    load_ms: passed on to the result.
    lender: of the state's sequence. turns: with the other requests of the engine.
    recall: called with the sequence and the prompt before its first pass; it may fill the KV cache
        with a prefix.
    abandon: called with what ends a stream that its caller let go of without finishing it.
    """

    strategy: DecodingStrategy
    started_s: float
    load_ms: float
    lender: Lender
    turns: Turns
    on_progress: Progress | None = None
    recall: Callable[[TokenSequence, Sequence[int]], None] = lambda sequence, prompt: None
    abandon: Callable[[Callable[[], None]], None] = lambda end: end()
    prefiller: Prefiller = field(default_factory=ExactPrefiller)


OnDone = Callable[[GenerationResult, bool], None]
"""Called once with the result, and whether the turn was dropped."""


class Stream(Iterator[str]):
    """An output as it appears: iterate it, or its `pieces`, for pieces of text.

    `stop` and `cancel` may be called at any time, from any thread; they take effect before the
    next token, or the next chunk of the prompt. Other streams of the engine may be iterated in
    between, or in other threads: they take turns, each with a KV cache of its own. An interrupt or
    error inside the iteration ends the output as `stop` does. Only time spent inside the iteration
    is counted.
    """

    def __init__(
        self, request: Request, state: DecodeState, text: TextStream, on_done: OnDone | None = None
    ) -> None:
        self._request = request
        self._state = state
        self._text = text
        self._on_done = on_done
        self._noise = Noise(state.config.seed)
        self._found: deque[tuple[int, str]] = deque()  # tokens of the last step, not yet emitted
        self._origins: list[str] = []
        self._is_prefilled = False  # or was begun
        self._decoding: Decoding | None = None
        self._is_running = False
        self._is_stopping = False
        self._is_dropped = False
        self._finish_reason: FinishReason | None = None
        self._result: GenerationResult | None = None
        self._busy_s = time.perf_counter() - request.started_s
        self._ttft_s = 0.0
        self._started_s = 0.0  # of the step in progress

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> str:
        if self._is_running:
            raise SessionError("this stream is being iterated elsewhere; wait for it")
        while self._result is None:
            piece = self._advance()
            if piece:
                return piece
        raise StopIteration

    @property
    def pieces(self) -> Iterator[tuple[str, str]]:
        """The pieces of text, each with the origin of the token that completed it."""
        return ((piece, self._origins[-1] if self._origins else TARGET) for piece in self)

    def __del__(self) -> None:
        # Whoever lets go of an unfinished stream may be in the middle of another's turn.
        if self.__dict__.get("_finish_reason", "never begun") is None and self._result is None:
            self._request.abandon(partial(_end, self._decoding, self._state, self._request.lender))

    @property
    def method(self) -> str:
        """The name of the method that decodes it."""
        return self._request.strategy.name

    @property
    def takes_turns(self) -> bool:
        """Two models take turns at it, so that `catch_up` has something to do."""
        return self._request.strategy.takes_turns

    @property
    def is_running(self) -> bool:
        """Another thread is computing the next piece right now."""
        return self._is_running

    @property
    def is_finished(self) -> bool:
        return self._result is not None

    @property
    def text(self) -> str:
        """The text so far."""
        return self._text.text

    @property
    def result(self) -> GenerationResult:
        """The finished output.

        Raises:
            SessionError: The output is not finished.
        """
        if self._result is None:
            raise SessionError(
                "the stream is not finished: iterate it to its end, or stop() it, for a result"
            )
        return self._result

    def watch(self) -> None:
        """Makes `signal` tell how sure the model is; to be called before the first piece."""
        self._state.is_watched = True

    @property
    def signal(self) -> Signal | None:
        """How sure the target model was of the newest token; None if it is not watched."""
        row = self._state.chosen_by
        return None if row is None else Signal.of(*row)

    def stop(self) -> None:
        """Ends the output here and keeps it, and its rows of the KV cache."""
        self._is_stopping = True
        if not self._is_running and self._result is None:
            self._finish("cancelled")

    def cancel(self) -> None:
        """Ends the output here and drops the turn: the KV cache forgets its new tokens."""
        if self._result is None:
            self._is_dropped = True
            self.stop()

    def explain(self) -> list[str]:
        """Returns what the method decided so far, a line each; nothing for methods that do not."""
        return [] if self._decoding is None else self._decoding.explain()

    def catch_up(self) -> int:
        """Uses idle time after an output: models that took turns compute what they missed of it.

        The next turn then begins sooner. Returns how many tokens that were; none of a dropped turn.
        """
        if self._result is None or self._decoding is None or self._is_dropped:
            return 0
        lender, state = self._request.lender, self._state
        target = lender.take(state.tokens)
        try:
            if common_prefix(target.tokens, state.tokens) < state.n_prompt:
                return 0  # another request has the text's sequence by now
            return self._request.turns.drive(self._decoding.catch_up(target))
        finally:
            lender.give_back(target)

    def _advance(self) -> str:
        """Returns the text of the next step, empty when it completed none."""
        self._started_s = time.perf_counter()
        self._is_running = True
        try:
            piece = "" if self._is_stopping else self._step()
            if self._is_stopping and self._finish_reason is None:
                self._finish_reason = "cancelled"
        except BaseException:
            self._finish_reason = "cancelled"
            raise
        finally:
            self._is_running = False
            self._busy_s += time.perf_counter() - self._started_s
            held = "" if self._finish_reason is None else self._finish(self._finish_reason)
        return piece + held

    def _step(self) -> str:
        """Returns the text the next token adds; empty when prefill was cancelled."""
        if not self._found:
            self._request.turns.drive(self._find_tokens(), self._state.clock)
        if not self._found:
            return ""
        token, origin = self._found.popleft()
        self._state.append(token)
        self._origins.append(origin)
        return self._accept(token)

    def _find_tokens(self) -> Passes[None]:
        """A step, after prefill if that is still to do; finds nothing when cancelled in there."""
        if self._decoding is None:
            self._decoding = yield from self._begin()
        if self._decoding is None:
            return
        result = yield from self._decoding.step(self._noise)
        self._found.extend(zip(result.tokens, result.origins, strict=True))

    def _begin(self) -> Passes[Decoding | None]:
        """Computes the prompt; returns None when cancelled on the way."""
        state, strategy = self._state, self._request.strategy
        self._is_prefilled = True
        self._request.recall(state.sequence, state.tokens)
        wanted = PrefillRequest(
            state.stats,
            state.needs_logits,
            tuple(strategy.hidden_layers),
            lambda: self._is_stopping,
            self._request.on_progress,
        )
        done = yield from self._request.prefiller.prefill(state.sequence, state.tokens, wanted)
        if done is None:
            return None
        state.rows = done.rows
        return strategy.begin(state, done.hidden)

    def _accept(self, token: int) -> str:
        """Returns the text ``token`` adds; notes the reason when it is the last one."""
        if len(self._origins) == 1:
            self._ttft_s = self._busy_s + time.perf_counter() - self._started_s
        if token in self._state.stop_token_ids:
            self._finish_reason = "stop"
            return ""
        piece = self._text.push(token)
        mask = self._state.mask
        if self._text.is_stopped or (mask is not None and mask.is_finished):
            self._finish_reason = "stop"
        elif len(self._origins) >= self._state.config.max_new_tokens:
            self._finish_reason = "length"
        elif len(self._state.tokens) > self._state.sequence.context:
            self._finish_reason = "context"
        return piece

    def _finish(self, reason: FinishReason) -> str:
        """Returns the text held back until now; makes the result and tells the owner."""
        rest, state = self._text.flush(), self._state
        state.stats.discard(len(self._found))
        self._found.clear()
        self._finish_reason = reason
        with self._request.turns.taken():
            if self._is_dropped and self._is_prefilled:
                n_kept = state.stats.n_reused_tokens
                _end(self._decoding, state, self._request.lender, n_kept)
            else:
                _end(self._decoding, state, self._request.lender)
        self._result = self._make_result(reason)
        if self._on_done is not None:
            self._on_done(self._result, self._is_dropped)
        return rest

    def _make_result(self, reason: FinishReason) -> GenerationResult:
        strategy, n_prompt = self._request.strategy, self._state.n_prompt
        token_ids = self._state.tokens[n_prompt:]
        decode_ms = 1000 * (self._busy_s - self._ttft_s)
        return GenerationResult(
            text=self._text.text,
            token_ids=tuple(token_ids),
            origins=tuple(self._origins),
            finish_reason=reason,
            n_prompt_tokens=n_prompt,
            load_ms=self._request.load_ms,
            ttft_ms=1000 * self._ttft_s,
            tpot_ms=decode_ms / (len(token_ids) - 1) if len(token_ids) > 1 else 0.0,
            peak_rss_mb=peak_rss_mb(),
            method=strategy.name,
            lossless=strategy.is_lossless,
            stats=self._state.stats,
            switch={} if self._decoding is None else self._decoding.summary(),
        )


def _end(
    decoding: Decoding | None, state: DecodeState, lender: Lender, n_kept: int | None = None
) -> None:
    """Ends a request's part everywhere. n_kept: tokens that stay in the KV cache, all when None."""
    try:
        if decoding is not None:
            decoding.end()
        if n_kept is not None and not state.sequence.is_closed:
            state.sequence.truncate(min(n_kept, state.sequence.n_tokens))
    finally:
        lender.give_back(state.sequence)
