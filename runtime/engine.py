"""The class users meet: a loaded bundle that turns prompts into text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from edgedec.models.errors import BundleError, ConfigError, SessionError
from edgedec.models.manifest import ModelEntry, read_manifest
from edgedec.runtime.affinity import Affinity
from edgedec.runtime.bundle_parts import default_method, defaults, identity, prompt_encoder
from edgedec.runtime.config import GenerationConfig, SuggestConfig
from edgedec.runtime.conversation import Conversation
from edgedec.runtime.core_split import CoreSplit, split_cores
from edgedec.runtime.decoding.strategy import DecodeState, DecodingStrategy
from edgedec.runtime.draft_source import DraftSource, find_draft
from edgedec.runtime.drafters.drafter import Drafter
from edgedec.runtime.generation import OnDone, Request, Stream
from edgedec.runtime.grammar import Grammars
from edgedec.runtime.loading import load_together
from edgedec.runtime.machine import physical_cores, processors
from edgedec.runtime.methods import PLAIN, MethodParts, Methods
from edgedec.runtime.prefill import Progress, check_fits
from edgedec.runtime.prompt import Prompt, PromptEncoder
from edgedec.runtime.result import GenerationResult
from edgedec.runtime.session import ModelSession
from edgedec.runtime.session_memory import (
    DRAFT,
    TARGET,
    KnownModel,
    SessionMemory,
    fingerprint_of,
)
from edgedec.runtime.store_source import find_store
from edgedec.runtime.switching.tuned import TUNED_KEY
from edgedec.runtime.text_stream import TextStream
from edgedec.runtime.tokenizer import TOKENIZER_NAME, Codec

if TYPE_CHECKING:
    from edgedec.runtime.suggestions import Completion


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
        from edgedec.runtime.suggestions import complete

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


def load(
    path: str | Path,
    threads: int | None = None,
    context: int | None = None,
    on_progress: Progress | None = None,
    draft: bool | str | Path = True,
    draft_threads: int | None = None,
    prompt_cache_mb: int = 256,
    affinity: Sequence[int] | None = None,
    store: str | Path | None = None,
    is_store_growing: bool = True,
    overlap: str = "auto",
) -> Engine:
    """Returns an engine over the bundle at ``path``.

    Args:
        threads: Threads of the kernels; one for each processor of ``affinity``, or for each of the
            machine's physical cores, when None.
        context: Most tokens of prompt and output together; the bundle's own when None.
        on_progress: Called with ("load", steps done, steps in all).
        draft: Another bundle whose model drafts; True for the bundle's own draft model, if it has
            one, False for none. It takes no memory until a method uses it.
        draft_threads: Threads of the draft model; as many as the target model's when None.
        prompt_cache_mb: Most memory for what earlier prompts left, so that prompts that take turns
            are not computed anew; 0 for none. Nothing is copied before another prompt comes.
            Units: 10**6 bytes.
        affinity: The processors that threads stay on, one for each; the first is for the thread
            that calls, and only while the model computes. Wherever the system puts them when None.
        store: File of the n-gram store that the methods ``store`` and ``auto`` draft from; made if
            there is none.
        is_store_growing: Whether the texts of these methods are added to the store.
        overlap: Whether the draft model drafts on while the target model verifies, on processors of
            its own: ``on``, ``off``, or ``auto``: with four cores or more, as long as it pays.

    Raises:
        ConfigError: A number makes no sense.
        BundleError: The bundle is broken, foreign or unsafe.
    """
    started_s = time.perf_counter()
    report = on_progress or (lambda phase, done, total: None)
    _check_threads("threads", threads)
    _check_threads("draft_threads", draft_threads)
    _check_positive("context", context)
    memory = SessionMemory.of_mb(prompt_cache_mb)
    placed = Affinity.of(affinity, threads)
    threads = threads or len(placed.processors) or physical_cores()
    draft_threads = draft_threads or threads
    draft_placed = placed.first(draft_threads)
    folder = Path(path)
    report("load", 0, 2)
    manifest = read_manifest(folder)
    entry = manifest.models["target"]
    context = _chosen_context(context, entry)
    if TOKENIZER_NAME not in manifest.files:
        raise BundleError(f"the manifest of {folder} lists no {TOKENIZER_NAME}: export it again")
    found_store = find_store(store, manifest, is_store_growing)
    report("load", 1, 2)
    memory.know(TARGET, KnownModel(fingerprint_of(manifest, TARGET), entry.config, context))
    draft_source = find_draft(folder, manifest, draft, draft_threads, context)
    if draft_source is not None:
        memory.know(DRAFT, draft_source.model)
        draft_source = replace(draft_source, memory=memory, affinity=draft_placed)
    split = split_cores(overlap, placed, threads, entry, draft_source)
    session, tokenizer = load_together(folder, entry, threads, context, placed)
    report("load", 2, 2)
    return Engine(
        LoadedModel(
            session=session,
            tokenizer=tokenizer,
            encoder=prompt_encoder(folder, manifest, tokenizer),
            stop_token_ids=manifest.stop_token_ids,
            defaults=defaults(folder, manifest),
            load_ms=1000 * (time.perf_counter() - started_s),
            draft=draft_source,
            default_method=default_method(manifest),
            identity=identity(manifest, threads),
            memory=memory,
            tuned=manifest.defaults.get(TUNED_KEY),
            store=found_store,
            split=split,
        )
    )


def _check_threads(name: str, threads: int | None) -> None:
    _check_positive(name, threads)
    if threads is not None and threads > processors():
        raise ConfigError(
            f"{name} is {threads}, expected at most {processors()}, this machine's processors"
        )


def _check_positive(name: str, value: int | None) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} is {value!r}, expected a whole number of at least 1")


def _chosen_context(context: int | None, entry: ModelEntry) -> int:
    if context is not None and context > entry.context:
        raise ConfigError(
            f"context is {context}, the bundle was exported for {entry.context}: ask for less, or "
            "export with a larger context"
        )
    return context or entry.context
