"""The class users meet: a loaded bundle that turns prompts into text."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from edgedec.models.errors import SessionError
from edgedec.runtime.config import GenerationConfig, SuggestConfig
from edgedec.runtime.cores.core_split import CoreSplit
from edgedec.runtime.decoding.strategy import DecodeState, DecodingStrategy
from edgedec.runtime.drafting.drafter import Drafter
from edgedec.runtime.methods.draft_source import DraftSource
from edgedec.runtime.methods.methods import PLAIN, MethodParts, Methods
from edgedec.runtime.requests.conversation import Conversation
from edgedec.runtime.requests.result import GenerationResult
from edgedec.runtime.requests.stream import OnDone, Request, Stream
from edgedec.runtime.sampling.grammar import Grammars
from edgedec.runtime.sessions.memory import (
    TARGET,
    SessionMemory,
)
from edgedec.runtime.sessions.prefill import Progress, check_fits
from edgedec.runtime.sessions.session import ModelSession
from edgedec.runtime.text.prompt import Prompt, PromptEncoder
from edgedec.runtime.text.text_stream import TextStream
from edgedec.runtime.text.tokenizer import Codec

if TYPE_CHECKING:
    from edgedec.runtime.requests.suggestions import Completion


@dataclass(frozen=True)
class LoadedModel:
    """The parts an engine is made of.

    stop_token_ids: tokens with which the model itself ends an output.
    defaults: the request used when the caller states none.
    draft: the draft model, opened by methods that need it.
    default_method: how requests are decoded that do not say.
    identity: of models, device and threads; see `MethodParts`.
    memory: what the sessions computed for earlier prompts.
    tuned: what `edgedec tune` found.
    store: makes drafters over the n-gram store, if there is one. split: see `MethodParts`.
    """

    session: ModelSession
    tokenizer: Codec
    encoder: PromptEncoder
    stop_token_ids: tuple[int, ...] = ()
    defaults: GenerationConfig = field(default_factory=GenerationConfig)
    load_ms: float = 0.0
    draft: DraftSource | None = None
    default_method: str = PLAIN
    identity: str = ""
    memory: SessionMemory = field(default_factory=SessionMemory)
    tuned: Any = None
    store: Callable[[], Drafter] | None = None
    split: CoreSplit = field(default_factory=CoreSplit)


class Engine:
    """A loaded bundle. It serves one request at a time and reuses the KV cache between them."""

    def __init__(self, model: LoadedModel, strategy: DecodingStrategy | None = None) -> None:
        """Takes over ``model``. strategy: decodes all requests, whatever method they name."""
        self._model: LoadedModel | None = model
        self._strategy = strategy
        parts = MethodParts(
            model.session, model.draft, model.identity, model.store, model.tuned, model.split
        )
        self._methods = Methods(parts, model.default_method)
        self._grammars = Grammars(model.tokenizer, model.session.vocab_size)
        self._stream: Stream | None = None
        self.defaults = model.defaults
        model.memory.open(TARGET, model.session)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def session(self) -> ModelSession:
        """The target model's session."""
        return self._open_model.session

    @property
    def tokenizer(self) -> Codec:
        return self._open_model.tokenizer

    @property
    def has_chat_template(self) -> bool:
        return self._open_model.encoder.has_template

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens with which the model itself ends an output."""
        return self._open_model.stop_token_ids

    @property
    def draft(self) -> DraftSource | None:
        """Where the draft model lies, if there is one."""
        return self._open_model.draft

    @property
    def load_ms(self) -> float:
        """Time it took to load the bundle."""
        return self._open_model.load_ms

    def generate(
        self,
        prompt: Prompt,
        config: GenerationConfig | None = None,
        on_progress: Progress | None = None,
    ) -> GenerationResult:
        """Returns the whole output; arguments as for `stream`."""
        stream = self.stream(prompt, config, on_progress)
        for _ in stream:
            pass
        return stream.result

    def stream(
        self,
        prompt: Prompt,
        config: GenerationConfig | None = None,
        on_progress: Progress | None = None,
    ) -> Stream:
        """Returns the output as it appears. An unfinished earlier stream is stopped.

        Args:
            prompt: Plain text, chat messages (``role`` and ``content``), or token ids.
            config: The request; the bundle's recommendation when None.
            on_progress: Called with ("prefill", tokens done, tokens in all) during prefill.

        Raises:
            SessionError: The prompt is empty, longer than the context, or the engine is closed.
        """
        return self.open_stream(prompt, config, on_progress)

    def encode(self, prompt: Prompt) -> list[int]:
        """Returns the ids of ``prompt``."""
        return self._open_model.encoder.encode(prompt)

    def open_stream(
        self,
        prompt: Prompt,
        config: GenerationConfig | None,
        on_progress: Progress | None,
        on_done: OnDone | None = None,
    ) -> Stream:
        """Returns a `stream` that also reports its result to ``on_done``."""
        started_s = time.perf_counter()
        model = self._open_model
        self.finish_stream()
        config = config or self.defaults
        config.check_vocabulary(model.session.vocab_size)
        strategy = self._strategy or self._methods.of_request(config)
        tokens = self.encode(prompt)
        check_fits(tokens, model.session)
        own_stops = () if config.ignore_eos else model.stop_token_ids
        request = Request(
            strategy=strategy,
            started_s=started_s,
            load_ms=model.load_ms,
            on_progress=on_progress,
            recall=partial(model.memory.recall, TARGET, model.session),
        )
        stops = frozenset(own_stops) | frozenset(config.stop_token_ids)
        mask = self._grammars.mask(config, stops)
        state = DecodeState.start(model.session, tokens, config, stops, mask)
        text = TextStream(model.tokenizer.detokenizer(), config.stop)
        self._stream = Stream(request, state, text, on_done)
        return self._stream

    def suggest(
        self,
        prompt: Prompt,
        config: SuggestConfig | None = None,
        on_progress: Progress | None = None,
    ) -> list[Completion]:
        """Returns completions of ``prompt`` with different first tokens, the likeliest first.

        Raises:
            SessionError: The prompt is empty, too long with its completions, or the engine closed.
        """
        from edgedec.runtime.requests.suggestions import complete

        model = self._open_model
        self.finish_stream()
        tokens = self.encode(prompt)
        check_fits(tokens, model.session)
        config = config or SuggestConfig()
        stops = config.stop_token_ids.union(model.stop_token_ids)
        model.memory.recall(TARGET, model.session, tokens)
        asked = replace(config, stop_token_ids=stops)
        return complete(model.session, model.tokenizer, tokens, asked, on_progress)

    def finish_stream(self) -> None:
        """Stops the stream in progress, if any.

        Raises:
            SessionError: Another thread is computing it right now.
        """
        if self._stream is None or self._stream.is_finished:
            return
        if self._stream.is_running:
            raise SessionError(
                "the engine is busy with another stream: finish it, or stop() it and wait"
            )
        self._stream.stop()

    def conversation(
        self, system: str | None = None, config: GenerationConfig | None = None
    ) -> Conversation:
        """Returns an empty conversation.

        Raises:
            SessionError: The bundle has no chat template.
        """
        if not self.has_chat_template:
            raise SessionError(
                "this bundle has no chat template: use generate or stream with plain text"
            )
        return Conversation(self, system, config)

    def forget_drafts(self) -> None:
        """Forgets what drafters learned from earlier requests, and their KV caches."""
        self.finish_stream()
        self._methods.forget()

    def save_session(self, path: str | Path) -> None:
        """Stops the stream in progress and writes what the KV caches hold, the draft model's too.

        An older file at ``path`` is replaced when all of the new one is on the disk. Only the
        file's owner may read it, for it holds the text.

        Raises:
            SessionError: The file cannot be written, or a stream is being computed.
        """
        memory = self._open_model.memory
        self.finish_stream()
        memory.save(Path(path))

    def load_session(self, path: str | Path) -> int:
        """Makes the KV caches hold what `save_session` wrote; returns the number of tokens.

        The next prompt that begins with those tokens, or some of them, is not computed anew.

        Raises:
            SessionError: The file is damaged or of another model; everything stays as it was.
        """
        memory = self._open_model.memory
        self.finish_stream()
        return memory.load(Path(path))

    def close(self) -> None:
        """Releases the model. Closing twice is fine."""
        if self._model is not None:
            self.finish_stream()
            self._methods.close()
            if self._strategy is not None:
                self._strategy.close()
            self._model.session.close()
            self._model = None

    @property
    def _open_model(self) -> LoadedModel:
        if self._model is None:
            raise SessionError("the engine is closed: load the bundle again")
        return self._model
