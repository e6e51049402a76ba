"""Opens the streams of an engine, and owns what they share."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

from edgedec.models.errors import SessionError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.checks import check_progress, check_type
from edgedec.runtime.decoding.strategy import DecodeState, DecodingStrategy
from edgedec.runtime.engine.lending import Lending
from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.engine.predictors import Predictors
from edgedec.runtime.engine.request import Request
from edgedec.runtime.engine.scheduler import Scheduler
from edgedec.runtime.engine.stream import OnDone, Stream
from edgedec.runtime.methods.methods import Methods
from edgedec.runtime.sampling.breakers import Breakers
from edgedec.runtime.sampling.masks import Masks
from edgedec.runtime.sequences.passes import Passes, T
from edgedec.runtime.sequences.prefill import Progress, check_fits
from edgedec.runtime.sequences.prompts_read import PromptsRead
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.session_memory import TARGET
from edgedec.runtime.text.prompt import Prompt, is_conversation
from edgedec.runtime.text.shown_tokens import ShownTokens
from edgedec.runtime.text.text_stream import maker_of_texts
from edgedec.runtime.text.thoughts import State, ThoughtFormat

if TYPE_CHECKING:
    from edgedec.runtime.sampling.alignment import Alignment

_N_TAIL = 24
"""Tokens of a prompt that say whether a thought has begun."""


class Streams:
    """The streams of one loaded bundle, which go on side by side."""

    def __init__(self, loaded: LoadedModel, strategy: DecodingStrategy | None = None) -> None:
        """Takes over ``loaded``. strategy: decodes all requests, whatever method they name."""
        self._loaded: LoadedModel | None = loaded
        self._strategy = strategy
        self._methods = Methods(loaded.parts, loaded.default_method)
        self._scheduler = Scheduler(loaded.memory.tidy)
        self._prompts = PromptsRead()
        self._streams: WeakSet[Stream] = WeakSet()
        self._sequences: WeakSet[TokenSequence] = WeakSet()  # lent to nobody, asked for by callers
        self._abandoned: deque[Callable[[], None]] = deque()
        self._predictors = Predictors(loaded.predictor)
        self._masks = Masks(loaded.tokenizer, loaded.model.vocab_size)
        self._breakers = Breakers(loaded.tokenizer)
        self._pool = loaded.memory.open(TARGET, loaded.model, loaded.context)

    @property
    def loaded(self) -> LoadedModel:
        """The parts of the bundle.

        Raises:
            SessionError: They are closed.
        """
        self.check_open()
        assert self._loaded is not None
        return self._loaded

    def check_open(self) -> None:
        """Raises: SessionError: The parts of the bundle are closed."""
        if self._loaded is None:
            raise SessionError("the engine is closed: load the bundle again")

    @property
    def lending(self) -> Lending:
        """What lends sequences; abandoned streams give theirs back first.

        Raises:
            SessionError: They are closed, or the model does not write from left to right.
        """
        if self._loaded is not None:
            self._tidy()
        self.loaded.check_sequential("suggestions, scores and searches")
        return Lending(self.loaded, self._pool, self._scheduler)

    def lending_to_embed(self) -> Lending:
        """Returns what lends sequences to read texts with, as `lending`.

        Raises:
            SessionError: They are closed, or the model fills masks in.
        """
        if not self.loaded.is_embedder:
            self.loaded.check_sequential("embeddings")
        self._tidy()
        return Lending(self.loaded, self._pool, self._scheduler)

    def open(
        self,
        prompt: Prompt,
        config: GenerationConfig,
        on_progress: Progress | None = None,
        on_done: OnDone | None = None,
        is_answer: bool = False,
        n_begun: int = 0,
        alignment: Alignment | None = None,
    ) -> Stream:
        """Returns the output as it appears; arguments and errors as for `Engine.stream`.

        on_done: Called with the result, and whether the caller dropped it.
        is_answer: The output continues no text.
        n_begun: Last tokens of the prompt that the output's text begins with.
        alignment: Weighs what the grammar allows.
        """
        started_s = time.perf_counter()
        loaded = self.loaded
        check_type("config", config, GenerationConfig, "a GenerationConfig or None")
        check_progress(on_progress)
        loaded.check_writes()
        self._tidy()
        config.check_vocabulary(loaded.model.vocab_size)
        self._predictors.check(config)
        tokens = loaded.encoder.encode(prompt, variables=config.template_variables)
        check_fits(tokens, loaded.context, loaded.model.n_token_ids)
        n_before = len(tokens) - n_begun
        is_answer = is_answer or is_conversation(prompt)
        goes_on = not (is_answer or loaded.encoder.has_source)
        before = tokens[:n_before] if goes_on else ()
        thoughts = loaded.encoder.thoughts if is_answer else None
        begins: State = "text"
        if thoughts is not None:
            begins = thoughts.state_after(loaded.tokenizer.named(tokens[:n_before][-_N_TAIL:]))
        new_text = maker_of_texts(loaded.tokenizer, before, config.stop, thoughts, begins)
        strategy, state = self._begin(tokens, config, alignment, thoughts, begins)
        request = Request(
            strategy=strategy,
            started_s=started_s,
            load_ms=loaded.load_ms,
            lender=self._pool,
            scheduler=self._scheduler,
            on_progress=on_progress,
            recall=partial(loaded.memory.recall, TARGET),
            prompts=self._prompts,
            abandon=self._abandoned.append,
            codec=loaded.tokenizer,
            new_text=new_text,
            predictor=partial(self._predictors.of, config),
        )
        trace = None if config.logprobs is None else ShownTokens()
        text = new_text(trace)
        for token in tokens[n_before:]:
            text.push(token)
        text.take_thought()
        stream = Stream(request, state, text, on_done, trace, n_begun)
        self._streams.add(stream)
        return stream

    def _begin(
        self,
        tokens: Sequence[int],
        config: GenerationConfig,
        alignment: Alignment | None,
        thoughts: ThoughtFormat | None,
        begins: State,
    ) -> tuple[DecodingStrategy, DecodeState]:
        """Returns the method of a request, and the state that its output starts from."""
        own_stops = () if config.ignore_eos else self.loaded.stop_token_ids
        stops = frozenset(own_stops) | frozenset(config.stop_token_ids)
        mask = self._masks.of(config, stops, thoughts, begins)
        breakers = self._breakers.of(config.sampling)
        with self._scheduler.exclusive():  # what requests share is made when first asked for
            strategy = self._strategy or self._methods.of_request(config)
            sequence = self._pool.take(tokens, config.prefix_group)
        prediction = self.loaded.tokenizer.encode(config.prediction) if config.prediction else ()
        return strategy, DecodeState.start(
            sequence, tokens, config, stops, mask, breakers, alignment, prediction
        )

    def new_sequence(self) -> TokenSequence:
        """Returns an empty sequence of the target model, which `close` closes as well."""
        sequence = TokenSequence(self.loaded.model, self.loaded.context)
        self._sequences.add(sequence)
        return sequence

    def run(self, steps: Passes[T]) -> T:
        """Returns what ``steps`` returns; its passes run between, or together with, those here."""
        return self._scheduler.run(steps)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """No pass is computed while the block runs, and abandoned streams have ended."""
        self._tidy()
        with self._scheduler.exclusive():
            yield

    def forget_drafts(self) -> None:
        """Forgets what drafters learned from earlier requests, and their KV caches."""
        with self.at_rest():
            self._methods.forget()

    def forget_prompts(self) -> None:
        """Forgets what the KV caches of finished requests hold."""
        with self.at_rest():
            self._pool.forget()

    def close(self) -> None:
        """Stops all streams and releases the model. Closing twice is fine.

        Raises:
            SessionError: Another thread is computing a stream right now.
        """
        loaded = self._loaded
        if loaded is None:
            return
        streams = [stream for stream in self._streams if not stream.is_finished]
        if any(stream.is_running for stream in streams):
            raise SessionError(
                "the engine is busy with a stream in another thread: finish it, or stop() it and "
                "wait"
            )
        for stream in streams:
            stream.stop()
        with self.at_rest():
            loaded.memory.keep()
            self._methods.close()
            if self._strategy is not None:
                self._strategy.close()
            for sequence in self._sequences:
                sequence.close()
            self._pool.close()
            loaded.release(loaded.model)
            self._predictors = Predictors(None)
            self._loaded = None

    def _tidy(self) -> None:
        """Ends the streams that were let go of unfinished."""
        if not self._abandoned:
            return
        with self._scheduler.exclusive():  # in here none of them is taken by another thread
            while self._abandoned:
                self._abandoned.popleft()()
