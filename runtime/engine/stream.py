"""One request being served: prefill, steps, stop rules, and the stream its caller holds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from threading import Condition, RLock
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

from edgedec.models.errors import SessionError
from edgedec.runtime.config.checks import check_callable
from edgedec.runtime.config.generation import BATCH
from edgedec.runtime.decoding.prefilling import (
    NoPrefill,
    Prefilling,
    Provisional,
    begin_prefill,
)
from edgedec.runtime.decoding.strategy import TARGET, DecodeState, Decoding
from edgedec.runtime.engine.request import Request, end_part, lent
from edgedec.runtime.engine.result import UP_TO_TIES, FinishReason, GenerationResult
from edgedec.runtime.sampling.logprobs import TextLogprob, TokenLogprob, text_logprobs
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import Passes, run_passes, while_idle
from edgedec.runtime.sequences.prefill import Prefilled, PrefillRequest
from edgedec.runtime.text.common_prefix import common_prefix
from edgedec.runtime.text.shown_tokens import ShownTokens
from edgedec.runtime.text.text_stream import TextStream
from edgedec.system.usage import peak_rss_mb

if TYPE_CHECKING:
    from edgedec.runtime.decoding.switching.policy import Signal


class Piece(NamedTuple):
    """A piece of text as it appears.

    origin: of the token that completed it. is_provisional: the text was written before the prompt
    was read to its end. What is provisional from ``position`` on, in characters of the output, is
    ``text`` now, which is empty where it did not hold. All other pieces are final, and follow one
    another; provisional text goes on to stand behind them until it is replaced, or they reach its
    end. is_thought: the model thinks; that is no part of the output's text.
    """

    text: str
    origin: str = TARGET
    is_provisional: bool = False
    position: int = 0
    is_thought: bool = False


OnDone = Callable[[GenerationResult, bool], None]
"""Called once with the result, and whether the turn was dropped."""


class Stream(Iterator[str]):
    """An output as it appears: iterate it, or its `pieces`, for pieces of text.

    `stop` and `cancel` may be called at any time, from any thread; they take effect before the
    next token, or the next chunk of the prompt. Other streams of the engine may be iterated in
    between, or in other threads. An interrupt or error inside the iteration ends the output as
    `stop` does. Only time spent inside the iteration is counted.
    """

    def __init__(
        self,
        request: Request,
        state: DecodeState,
        text: TextStream,
        on_done: OnDone | None = None,
        trace: ShownTokens | None = None,
        n_begun: int = 0,
    ) -> None:
        """trace: of ``text``, if it is traced. n_begun: tokens of the prompt in ``text``."""
        self._request = request
        self._state = state
        self._text = text
        self._on_done = on_done
        self._trace = trace
        self._n_begun = n_begun
        self._text_logprobs: list[TextLogprob] = []
        self._n_traced = 0
        self._noise = Noise(state.config.seed)
        self._pending: deque[tuple[int, str]] = deque()  # tokens of the last step, not yet emitted
        self._origins: list[str] = []
        self._stop_token: int | None = None
        self._prefilling: Prefilling | None = None
        self._prefilled: Prefilled | None = None
        self._ready: deque[Piece] = deque()  # pieces not yet given out
        self._provisional_text: TextStream | None = None
        self._provisional_s = 0.0  # until the first of them
        self._decoding: Decoding | None = None
        self._claims = RLock()  # guards the two flags: one thread at a time runs or ends the output
        self._ended = Condition(self._claims)
        self._is_running = self._is_ending = False
        self._is_stopping = False
        self._is_dropped = False
        self._finish_reason: FinishReason | None = None
        self._result: GenerationResult | None = None
        self._busy_s = time.perf_counter() - request.started_s
        self._ttft_s = 0.0
        self._started_s = 0.0  # when time was counted last
        self._n_shown = 0  # characters

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> str:
        while (piece := self._next_piece()) is not None:
            if not (piece.is_provisional or piece.is_thought):
                return piece.text
        raise StopIteration

    @property
    def pieces(self) -> Iterator[Piece]:
        """The pieces of text, those that are only provisional among them."""
        while (piece := self._next_piece()) is not None:
            yield piece

    def write(self, take: Callable[[Piece], None] = lambda piece: None) -> GenerationResult:
        """Writes the rest of the output, gives each piece to ``take``, and returns the result.

        It is what iterating `pieces` gives. Where several threads write, one of them does the
        steps of all in turn: that costs less than waking each for every piece.

        Args:
            take: Called in whichever thread does the step. No pass begins until it returns. An
                error in it ends the output, and is raised here.
        """
        self._claim()
        try:
            if self._result is None:
                self._run(self._write(take), is_whole=True)
            while self._ready:
                take(self._ready.popleft())
        finally:
            self._is_running = False
        return self.result

    def _next_piece(self) -> Piece | None:
        """Returns the next piece; None at the end."""
        self._claim()
        try:
            while not self._ready and self._result is None:
                self._run(self._advance())
            return self._ready.popleft() if self._ready else None
        finally:
            self._is_running = False

    def _claim(self) -> None:
        """Makes this thread the one that goes on with the output."""
        with self._claims:
            while self._is_ending and self._result is None:
                self._ended.wait()
            if self._is_running:
                raise SessionError("this stream is being iterated elsewhere; wait for it")
            self._is_running = True

    def __del__(self) -> None:
        # Whoever lets go of an unfinished stream may be in the middle of another's turn.
        if self.__dict__.get("_finish_reason", "never begun") is None and self._result is None:
            self._request.prompts.end(self._state.sequence)
            self._request.abandon(
                partial(end_part, self._decoding, self._state, self._request.lender)
            )

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
    def n_reused_tokens(self) -> int:
        """Tokens of the prompt that the KV cache held already; 0 before the first pass."""
        return self._state.stats.n_reused_tokens

    @property
    def text(self) -> str:
        """The text so far."""
        return self._text.text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The prompt and the output so far."""
        return tuple(self._state.tokens)

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Of each token of the output so far, if the request asks for them."""
        return tuple(self._state.logprobs)

    @property
    def text_logprobs(self) -> tuple[TextLogprob, ...]:
        """Of each token of the text so far, if the request asks for them."""
        known, codec = self._state.logprobs, self._request.codec
        if self._trace is None or codec is None:
            return ()
        for shown in self._trace.shown[self._n_traced :]:
            places = [i - self._n_begun for i in shown.places if i >= self._n_begun]
            tokens = [known[i] for i in places if i < len(known)]
            self._text_logprobs += text_logprobs(tokens, shown.text, codec.token_bytes)
        self._n_traced = len(self._trace.shown)
        return tuple(self._text_logprobs)

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
        """Makes `signal` say how sure the model is; to be called before the first piece."""
        self._state.is_watched = True

    @property
    def signal(self) -> Signal | None:
        """How sure the target model was of the newest token; None if it is not watched."""
        from edgedec.runtime.decoding.switching.policy import Signal

        row = self._state.chosen_by
        return None if row is None else Signal.of(*row)

    def stop(self) -> None:
        """Ends the output here and keeps it, and its rows of the KV cache."""
        self._is_stopping = True
        if self._is_running or self._result is not None:
            return
        with self._request.scheduler.exclusive():  # first, so that its holder never waits
            with self._claims:
                is_free = not (self._is_running or self._is_ending) and self._result is None
                self._is_ending |= is_free
            if is_free:
                self._finish("cancelled")

    def cancel(self) -> None:
        """Ends the output here and drops the turn: the KV cache forgets its new tokens."""
        if self._result is None:
            self._is_dropped = True
            self.stop()

    def explain(self) -> list[str]:
        """Returns what the method decided so far, a line each; nothing for methods that do not."""
        return [] if self._decoding is None else self._decoding.explain()

    def explain_rounds(self) -> list[str]:
        """Returns what the method decided in each round, and why; nothing for most methods."""
        return [] if self._decoding is None else self._decoding.explain_rounds()

    def catch_up(self, is_over: Callable[[], bool] = lambda: False) -> int:
        """Uses idle time after an output: models compute what they missed of it, or predicted.

        The next turn then begins sooner, or is drafted better. Returns how many tokens that were;
        none of a dropped turn, or where it ended early.

        is_over: asked between passes whether the idle time is.
        """
        check_callable("is_over", is_over)
        if self._result is None or self._decoding is None or self._is_dropped:
            return 0
        state, scheduler = self._state, self._request.scheduler
        group = state.config.prefix_group
        with lent(self._request.lender, scheduler, state.tokens, group) as target:
            if common_prefix(target.tokens, state.tokens) < state.n_prompt:
                return 0  # another request has the text's sequence by now
            steps = while_idle(self._decoding.catch_up(target), is_over)
            return scheduler.run(steps, is_batch=True) or 0

    def _run(self, steps: Passes[None], is_whole: bool = False) -> None:
        """Goes on with the output. An interrupt or error ends it.

        is_whole: to its end. Otherwise tokens that were found already need no turn.
        """
        request = self._request
        self._started_s = time.perf_counter()
        try:
            if not is_whole and (self._pending or self._is_stopping):
                return run_passes(steps)
            is_reading = self._prefilled is None
            if is_reading and self._prefilling is None and request.strategy.needs_prefill:
                self._await_prompts()
            is_pinned = is_reading and request.on_progress is not None
            is_batch = self._state.config.priority == BATCH
            request.scheduler.run(steps, self._state.clock, is_pinned=is_pinned, is_batch=is_batch)
        except BaseException:
            if self._result is None:
                self._count_time()
                self._finish("cancelled")
            raise
        finally:
            self._count_time()

    def _write(self, take: Callable[[Piece], None]) -> Passes[None]:
        """Goes on to the end of the output; ``take`` is given all pieces."""
        while True:
            self._count_time()
            while self._ready:
                take(self._ready.popleft())
            if self._result is not None:
                return
            self._started_s = time.perf_counter()
            yield from self._advance()

    def _advance(self) -> Passes[None]:
        """Adds the text of the next token, and ends the output behind its last."""
        text = ""
        if not self._is_stopping:
            if self._decoding is None and not self._pending:
                yield from self._begin()
            if self._decoding is not None and not self._pending:
                result = yield from self._decoding.step(self._noise)
                self._pending.extend(zip(result.tokens, result.origins, strict=True))
            if self._pending:
                text = self._accept(*self._pending.popleft())
        if self._is_stopping and self._finish_reason is None:
            self._finish_reason = "cancelled"
        if self._finish_reason is not None:
            self._count_time()
            text += self._finish(self._finish_reason)
        if thought := self._text.take_thought():
            origin = self._origins[-1] if self._origins else TARGET
            self._ready.append(Piece(thought, origin, position=self._n_shown, is_thought=True))
        if text:
            origin = self._origins[-1] if self._origins else TARGET
            self._ready.append(Piece(text, origin, position=self._n_shown))
            self._n_shown += len(text)

    def _count_time(self) -> None:
        """Counts the time since this was called last, or the output went on."""
        now_s = time.perf_counter()
        self._busy_s += now_s - self._started_s
        self._started_s = now_s

    def _await_prompts(self) -> None:
        """Lets others compute what they are about to, where the prompt begins like theirs."""
        state = self._state
        with state.clock.stopped():
            self._request.prompts.begin(
                state.sequence,
                state.tokens,
                lambda: self._is_stopping or self._request.scheduler.is_held,
            )

    def _begin(self) -> Passes[None]:
        """Reads the prompt, and begins to decode unless cancelled, or reading found tokens."""
        if self._prefilled is None:
            yield from self._read_prompt()
            if self._prefilled is None or self._pending:
                return
        prefilled, self._state.rows = self._prefilled, self._prefilled.rows
        self._decoding = self._request.strategy.begin(self._state, prefilled.hidden)

    def _read_prompt(self) -> Passes[None]:
        """Goes on with the prompt; leaves it unfinished when cancelled, or for what there is."""
        if self._prefilling is None:
            self._prefilling = self._begin_prefill()
        progress = yield from self._prefilling.step(self._noise)
        if isinstance(progress, Provisional):
            self._show(progress)
        elif progress is not None:
            self._prefilled = progress
            self._request.prompts.end(self._state.sequence)
            self._confirm(progress)

    def _begin_prefill(self) -> Prefilling:
        state, request = self._state, self._request
        if not request.strategy.needs_prefill:
            return NoPrefill()
        request.recall(state.sequence, state.tokens)
        held = ref(self)  # what a stream keeps does not keep the stream: see `__del__`
        prefill_request = PrefillRequest(
            state.stats,
            state.needs_logits,
            tuple(request.strategy.hidden_layers),
            lambda: (stream := held()) is None or stream._is_stopping,
            request.on_progress,
            state.config.prefill_pass_ms,
            request.strategy.with_mtp,
        )
        return begin_prefill(state, prefill_request, request.predictor())

    def _show(self, provisional: Provisional) -> None:
        """Notes the text of the latest provisional token."""
        if self._provisional_text is None:
            assert self._request.new_text is not None
            self._provisional_text = self._request.new_text()
            self._provisional_s = self._busy_s + time.perf_counter() - self._started_s
        position = len(self._provisional_text.text)
        if text := self._provisional_text.push(provisional.tokens[-1]):
            self._ready.append(Piece(text, TARGET, True, position))
        self._state.stats.n_provisional = len(provisional.tokens)

    def _confirm(self, prefilled: Prefilled) -> None:
        """Takes provisional tokens that hold over; notes from where on the others are replaced."""
        self._state.stats.n_confirmed = prefilled.n_right
        self._state.stats.n_carried = len(prefilled.confirmed)
        self._pending.extend((token, TARGET) for token in prefilled.confirmed)
        if prefilled.n_right < len(prefilled.provisional):
            assert self._request.new_text is not None
            text = self._request.new_text()
            for token in prefilled.provisional[: prefilled.n_right]:
                text.push(token)
            self._ready.append(Piece("", TARGET, True, len(text.text)))

    def _accept(self, token: int, origin: str) -> str:
        """Returns the text ``token`` adds; notes the reason when it is the last one."""
        state = self._state
        state.append(token)
        self._origins.append(origin)
        n_tokens = len(self._origins)
        if n_tokens == 1:
            self._ttft_s = self._busy_s + time.perf_counter() - self._started_s
        if token in state.stop_token_ids:
            self._stop_token = token
            self._finish_reason = "stop"
            return ""
        piece = self._text.push(token)
        if self._text.is_stopped or (state.mask is not None and state.mask.is_finished):
            self._finish_reason = "stop"
        elif n_tokens >= state.config.max_new_tokens:
            self._finish_reason = "length"
        elif len(state.tokens) >= state.most_tokens:
            self._finish_reason = "context"
        return piece

    def _finish(self, reason: FinishReason) -> str:
        """Makes the result, informs the owner, and returns the text held back until now."""
        try:
            rest = self._text.flush()
            self._finish_reason = reason
            self._end_turn()
            self._result = self._make_result(reason)
            if self._on_done is not None:
                self._on_done(self._result, self._is_dropped)
        finally:
            with self._claims:
                self._is_ending = False
                self._ended.notify_all()
        return rest

    def _end_turn(self) -> None:
        """Gives back what the output was made with."""
        state = self._state
        if self._decoding is None:  # the prompt gave all there is
            state.stats.n_carried = max(0, len(self._origins) - 1)
        else:
            state.stats.discard(len(self._pending))
        self._pending.clear()
        n_reused = state.stats.n_reused_tokens
        n_kept = n_reused if self._is_dropped and self._prefilling is not None else None
        self._request.prompts.end(state.sequence)
        self._request.scheduler.forget(state.clock)
        with self._request.scheduler.exclusive():
            end_part(self._decoding, state, self._request.lender, n_kept)

    def _make_result(self, reason: FinishReason) -> GenerationResult:
        strategy, n_prompt = self._request.strategy, self._state.n_prompt
        token_ids = self._state.tokens[n_prompt:]
        decode_ms = 1000 * (self._busy_s - self._ttft_s)
        is_exact = self._prefilling is None or self._prefilling.is_exact
        is_lossless = strategy.is_lossless and is_exact
        gap = self._state.sequence.model.capabilities.row_gap
        return GenerationResult(
            text=self._text.text,
            reasoning=self._text.reasoning,
            n_reasoning_tokens=self._text.n_thought_tokens,
            text_logprobs=self.text_logprobs,
            stop_token=self._stop_token,
            token_ids=tuple(token_ids),
            origins=tuple(self._origins),
            finish_reason=reason,
            n_prompt_tokens=n_prompt,
            load_ms=self._request.load_ms,
            ttft_ms=1000 * self._ttft_s,
            tpot_ms=decode_ms / (len(token_ids) - 1) if len(token_ids) > 1 else 0.0,
            peak_rss_mb=peak_rss_mb(),
            logprobs=tuple(self._state.logprobs),
            method=strategy.name,
            provisional_ms=1000 * self._provisional_s,
            lossless=is_lossless and (UP_TO_TIES if gap else True),
            largest_gap=gap if is_lossless else 0.0,
            stats=self._state.stats,
            switch={} if self._decoding is None else self._decoding.summary(),
            is_in_order=strategy.is_in_order,
            stop_text=self._text.stop_text if reason == "stop" else "",
        )
