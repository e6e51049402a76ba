"""One answer: from an engine's stream to events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from edgedec.apps.serve.core import (
    Counts,
    Done,
    EndReason,
    Event,
    Likely,
    LineLimits,
    PromptProgress,
    ReasoningDelta,
    ServeError,
    TextDelta,
    TokenInfo,
    invalid,
)
from edgedec.apps.serve.parsing import LineWatch, OutputParser
from edgedec.apps.serve.problems import client_errors
from edgedec.apps.serve.prompts import Prepared
from edgedec.apps.serve.responses import log_unexpected
from edgedec.models.errors import ConfigError, EdgedecError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.engine.stream import Piece, Stream
from edgedec.runtime.sampling.logprobs import TextLogprob, TokenLogprob

_MIN = -9999.0
"""Sent in place of log-probabilities below it: JSON has no infinity."""

_REASONS: Mapping[str, EndReason] = {"stop": "stop", "length": "length", "context": "length"}


@dataclass(frozen=True)
class AnswerJob:
    """One answer that is to be written.

    is_echoed: the prompt comes first. is_silent: nothing is written behind it. with_origins: pieces
    say who wrote them. with_progress: events say how much of the prompt is read. lines: what ends
    it behind a line.
    """

    index: int
    prepared: Prepared
    config: GenerationConfig
    is_echoed: bool = False
    is_silent: bool = False
    with_origins: bool = False
    with_progress: bool = False
    lines: LineLimits | None = None


class Writer:
    """Writes one answer, and reports what happens as events, in whichever thread does a step."""

    def __init__(self, engine: Engine, job: AnswerJob, tell: Callable[[Event], None]) -> None:
        self._engine = engine
        self._job = job
        self._tell = tell
        self._stream: Stream | None = None
        self._is_stopped = False
        self._begun_s = 0.0

    def open(self) -> None:
        """Makes the engine check the request; nothing is computed yet.

        Raises:
            ServeError: The request makes no sense, or does not fit the context.
        """
        prepared = self._job.prepared
        if self._stream is None and not self._job.is_silent:
            with client_errors():
                self._stream = self._engine.streams.open(
                    prepared.tokens,
                    self._job.config,
                    self._report if self._job.with_progress else None,
                    is_answer=prepared.is_answer,
                )

    def write(self) -> ServeError | None:
        """Writes the answer to its end, or until it is stopped; returns what went wrong."""
        try:
            if self._job.is_echoed:
                self._echo()
            if self._job.is_silent:
                self._tell(Done(self._job.index, "length", self._counts_of_echo()))
            elif not self._is_stopped:
                self._follow_stream()
        except ServeError as problem:
            return problem
        except ConfigError as error:  # a grammar that fails only where a text follows it
            return invalid(str(error))
        except EdgedecError as error:
            return ServeError(500, "server_error", str(error))
        except Exception as error:  # a client must not wait for an answer that nobody writes
            log_unexpected(error)
            return ServeError(500, "server_error", f"unexpected {type(error).__name__}")
        finally:
            if self._is_stopped:
                self.stop()  # the stream may have been opened after the stop
        return None

    def stop(self) -> None:
        """Ends the answer, from any thread, within a pass."""
        self._is_stopped = True
        if self._stream is not None and not self._stream.is_finished:
            self._stream.stop()

    def _follow_stream(self) -> None:
        self.open()
        job, stream = self._job, self._stream
        self._begun_s = time.monotonic()
        assert stream is not None
        parser = OutputParser(job.index, job.prepared.tools)
        watch = LineWatch(job.lines or LineLimits())
        n_sent = 0

        def take(piece: Piece) -> None:
            nonlocal n_sent
            if piece.is_provisional or self._is_stopped or watch.is_over:
                return
            if piece.is_thought:
                self._tell(ReasoningDelta(job.index, piece.text))
                return
            tokens = stream.text_logprobs[n_sent:]
            n_sent += len(tokens)
            origin = piece.origin if job.with_origins else ""
            text = watch.push(piece.text)
            self._tell_all(parser.push(text, self._infos(tokens), origin))
            if watch.is_over:
                stream.stop()

        stream.write(take)
        if stream.result.finish_reason in _REASONS or watch.is_over:
            rest = () if watch.is_over else stream.text_logprobs[n_sent:]
            self._tell_all(parser.push("", self._infos(rest)))
            self._tell_all(parser.flush())
            reason = "length" if watch.is_over else _REASONS[stream.result.finish_reason]
            self._tell(_done(job.index, stream.result, parser.n_calls > 0, reason))

    def _report(self, phase: str, n_read: int, n_prompt: int) -> None:
        n_cached = 0 if self._stream is None else self._stream.n_reused_tokens
        ms = 1000.0 * (time.monotonic() - self._begun_s)
        self._tell(PromptProgress(self._job.index, n_prompt, n_cached, n_read, ms))

    def _echo(self) -> None:
        """Tells the prompt, token by token with how likely each was, if that is asked for."""
        ids, n_top = self._job.prepared.tokens, self._job.config.logprobs
        infos: list[TokenInfo] = []
        if n_top is not None:
            with client_errors():
                scored = self._engine.score(ids, n_top, lambda: self._is_stopped)
            first = TokenInfo(self._likely(ids[0], None), [])
            infos = [first, *self._infos_of_prompt(scored)]
        text = self._job.prepared.text
        self._tell(TextDelta(self._job.index, text, infos))

    def _counts_of_echo(self) -> Counts:
        n_prompt = len(self._job.prepared.tokens)
        return Counts(n_prompt, 0, 0, 0.0, 0.0, 0, 0, "plain", True)

    def _infos(self, tokens: Sequence[TextLogprob]) -> list[TokenInfo]:
        return [
            TokenInfo(
                Likely(logprob.text, logprob.token, max(logprob.logprob, _MIN), logprob.spelling),
                [self._likely(*top) for top in logprob.top],
                logprob.n_characters,
            )
            for logprob in tokens
        ]

    def _infos_of_prompt(self, tokens: Sequence[TokenLogprob]) -> list[TokenInfo]:
        return [
            TokenInfo(
                self._likely(logprob.token, logprob.logprob),
                [self._likely(*top) for top in logprob.top],
            )
            for logprob in tokens
        ]

    def _likely(self, token: int, logprob: float | None) -> Likely:
        known = None if logprob is None else max(logprob, _MIN)
        spelling = self._engine.tokenizer.token_bytes(token)
        return Likely(self._engine.tokenizer.decode([token]), token, known, spelling)

    def _tell_all(self, events: Iterable[Event]) -> None:
        for event in events:
            self._tell(event)


def _done(index: int, result: GenerationResult, has_calls: bool, reason: EndReason) -> Done:
    stats = result.stats
    counts = Counts(
        n_prompt=result.n_prompt_tokens,
        n_cached=stats.n_reused_tokens,
        n_new=result.n_new_tokens,
        n_reasoning=result.n_reasoning_tokens,
        prompt_ms=result.ttft_ms,
        decode_ms=result.tpot_ms * max(0, result.n_new_tokens - 1),
        n_drafted=stats.n_evaluated,
        n_accepted=stats.n_accepted,
        method=result.method,
        lossless=result.lossless,
    )
    reason = "tool_calls" if has_calls and reason == "stop" else reason
    return Done(index, reason, counts, result.stop_text)
