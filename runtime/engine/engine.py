"""The class users meet: a loaded bundle that turns prompts into text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from edgedec.models.errors import SessionError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.checks import (
    check_type,
    checked_counts,
    checked_path,
)
from edgedec.runtime.config.generation import BATCH
from edgedec.runtime.config.settings import with_settings
from edgedec.runtime.decoding.strategy import DecodingStrategy
from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.engine.stream import Stream
from edgedec.runtime.engine.streams import Streams
from edgedec.runtime.sequences.model import Model
from edgedec.runtime.sequences.passes import Passes, T
from edgedec.runtime.sequences.prefill import Progress
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.text.prompt import Message, Prompt, is_conversation
from edgedec.runtime.text.tokenizer import Codec

if TYPE_CHECKING:  # imported where they are needed: each import delays a first token
    from typing import Unpack

    from edgedec.models.pooling import EmbeddingConfig, Pooling
    from edgedec.runtime.config.settings import Settings
    from edgedec.runtime.config.suggestion import SuggestConfig
    from edgedec.runtime.engine.conversation import Conversation
    from edgedec.runtime.engine.many import OnResult
    from edgedec.runtime.methods.draft_source import DraftSource
    from edgedec.runtime.sampling.logprobs import TokenLogprob
    from edgedec.runtime.search.aligned import Aligned
    from edgedec.runtime.search.beam_texts import Beam
    from edgedec.runtime.search.best_of import BestOf, Chooser
    from edgedec.runtime.search.quoting import Quote
    from edgedec.runtime.search.suggestions import Completion
    from edgedec.runtime.sequences.rows import Float32


class Engine:
    """A loaded bundle. Its requests go on side by side, each with a KV cache of its own.

    Texts that begin alike have that part of it in common, whether or not they are finished.
    """

    def __init__(self, loaded: LoadedModel, strategy: DecodingStrategy | None = None) -> None:
        """Takes over ``loaded``.

        strategy: Decodes all requests, whatever method they name.

        ``streams`` opens streams for callers that need more than `stream`.
        """
        self.streams = Streams(loaded, strategy)
        self.defaults = loaded.defaults
        self.encoder = loaded.encoder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def loaded(self) -> LoadedModel:
        """The parts it is made of.

        Raises:
            SessionError: It is closed.
        """
        return self.streams.loaded

    @property
    def model(self) -> Model:
        """The target model."""
        return self.loaded.model

    @property
    def context(self) -> int:
        """Maximum tokens of prompt and output together."""
        return self.loaded.context

    @contextmanager
    def borrowed(self, text: Sequence[int]) -> Iterator[TokenSequence]:
        """The sequence of a finished request that holds most of ``text``, for passes of one's own.

        It may be left in any state; the next request makes of it what it needs.
        """
        with self.streams.lending.sequence(checked_counts("text", text)) as sequence:
            yield sequence

    def new_sequence(self) -> TokenSequence:
        """Returns an empty sequence of the target model, for passes of one's own.

        Whoever is done with it closes it; the engine's end closes it as well.
        """
        return self.streams.new_sequence()

    def run(self, steps: Passes[T]) -> T:
        """Returns what ``steps`` returns, whose passes are of a sequence of one's own.

        They are computed between, or together with, those of streams.
        """
        return self.streams.run(steps)

    @property
    def tokenizer(self) -> Codec:
        """The bundle's, which writes and reads texts as tokens."""
        return self.loaded.tokenizer

    @property
    def has_chat_template(self) -> bool:
        """The bundle says how a conversation is written, so `chat` works."""
        return self.loaded.encoder.has_template

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens with which the model itself ends an output."""
        return self.loaded.stop_token_ids

    @property
    def draft(self) -> DraftSource | None:
        """Where the draft model lies, if there is one."""
        return self.loaded.parts.draft

    def generate(
        self,
        prompt: Prompt,
        config: GenerationConfig | None = None,
        on_progress: Progress | None = None,
        **settings: Unpack[Settings],
    ) -> GenerationResult:
        """Returns the whole output; arguments as for `stream`."""
        return self.stream(prompt, config, on_progress, **settings).write()

    def stream(
        self,
        prompt: Prompt,
        config: GenerationConfig | None = None,
        on_progress: Progress | None = None,
        **settings: Unpack[Settings],
    ) -> Stream:
        """Returns the output as it appears. Streams in progress go on, beside this one.

        Args:
            prompt: Plain text, chat messages (``role`` and ``content``), or token ids.
            config: The request; the bundle's recommendation when None.
            on_progress: Called with ("prefill", tokens done, tokens in all) during prefill.
            settings: Fields of `GenerationConfig` and `SamplingConfig` by name, such as
                ``temperature=0.7``. They replace those of ``config``.

        Raises:
            ConfigError: A setting is unknown, or its value makes no sense.
            SessionError: The prompt is empty, longer than the context, or the engine is closed.
        """
        return self.streams.open(prompt, self._config_of(config, settings), on_progress)

    def generate_many(
        self,
        prompts: Sequence[Prompt],
        config: GenerationConfig | None = None,
        on_progress: OnResult | None = None,
        **settings: Unpack[Settings],
    ) -> list[GenerationResult]:
        """Returns the outputs of ``prompts`` in their order, computed side by side.

        Each is what `generate` returns alone; where the model can, they share passes.

        Args:
            prompts: Prompts as for `stream`.
            config: As for `stream`.
            settings: As for `stream`.
            on_progress: Called with the place of a prompt and its result, as they finish.

        Raises:
            SessionError: A prompt is empty or too long, or the engine is closed; nothing goes on.
        """
        from edgedec.runtime.engine.many import generate_many

        requested = self._of_batch(config, settings)
        variables = requested.template_variables  # a bad prompt stops all before any
        encoded = [self.encode(prompt, variables) for prompt in prompts]
        n_at_once = self.model.capabilities.n_sequences
        openers = [
            partial(self.streams.open, ids, requested, is_answer=is_conversation(prompt))
            for ids, prompt in zip(encoded, prompts, strict=True)
        ]
        # Prompts with a common beginning follow each other: it is still in a KV cache.
        order = sorted(range(len(encoded)), key=encoded.__getitem__)
        return generate_many(openers, n_at_once, on_progress, order=order)

    def best_of(
        self,
        prompt: Prompt,
        n: int,
        chooser: str | Chooser = "vote",
        config: GenerationConfig | None = None,
        on_progress: OnResult | None = None,
        **settings: Unpack[Settings],
    ) -> BestOf:
        """Returns ``n`` tries at an answer, computed side by side, and which one is the best.

        Try i has the seed ``seed + i``, and is the text that `generate` gives for that seed.

        Args:
            prompt, config, settings: As for `stream`; the temperature has to be above 0.
            chooser: What chooses: ``vote`` (the answer given most often), ``weighted`` (votes
                count by the tries' probability), ``likelihood`` (the likeliest text), or a
                `Chooser` such as `runtime.search.best_of.ByTests`.
            on_progress: Called with the place of a try and its result, as they finish.

        Raises:
            ConfigError: All tries would be alike, or there is no such chooser.
            SessionError: As for `stream`.
        """
        from edgedec.runtime.search.tries import best_of

        return best_of(
            self.streams, prompt, n, chooser, self._of_batch(config, settings), on_progress
        )

    def generate_aligned(
        self,
        prompt: Prompt,
        n_tries: int,
        config: GenerationConfig | None = None,
        **settings: Unpack[Settings],
    ) -> Aligned:
        """Returns a sample of the texts that follow a grammar, likely as the model finds them.

        The mask of a grammar makes texts likelier that begin as many others do. Here tries are made
        until one is accepted, which is then an exact sample, or until there were ``n_tries``. More
        tries come nearer to the model's proportions. Passes are bounded by ``n_tries`` times
        ``max_new_tokens``. The first try is the text of `generate`.

        Args:
            prompt, config, settings: As for `stream`; the temperature has to be above 0.
            n_tries: Most tries.

        Raises:
            ConfigError: There is no grammar, or something else changes the model's distribution.
            SessionError: As for `stream`.
        """
        from edgedec.runtime.search.aligned import generate_aligned

        requested = self._config_of(config, settings)
        ids = self.encode(prompt, requested.template_variables)
        return generate_aligned(
            lambda seeded, alignment: self.streams.open(
                ids, seeded, is_answer=is_conversation(prompt), alignment=alignment
            ),
            requested,
            n_tries,
        )

    async def astream(
        self,
        prompt: Prompt,
        config: GenerationConfig | None = None,
        **settings: Unpack[Settings],
    ) -> AsyncIterator[str]:
        """Yields the pieces that `stream` gives, for programs that await; ends it if they stop."""
        from edgedec.runtime.engine.many import in_threads

        requested = self._config_of(config, settings)
        async for piece in in_threads(partial(self.stream, prompt, requested)):
            yield piece

    def encode(
        self, prompt: Prompt, template_variables: Mapping[str, Any] = MappingProxyType({})
    ) -> list[int]:
        """Returns the ids of ``prompt``.

        template_variables: what the chat template may read besides messages.
        """
        return self.loaded.encoder.encode(prompt, variables=template_variables)

    def score(
        self, prompt: Prompt, n_top: int = 0, is_over: Callable[[], bool] = lambda: False
    ) -> list[TokenLogprob]:
        """Returns how likely each token of ``prompt`` is after those before it, from the second on.

        Args:
            n_top: How many of the likeliest tokens are reported at each place, at most 20.
            is_over: Asked between passes whether the caller gave up; the list is empty then.

        Raises:
            SessionError: The prompt is empty or longer than the context, or the engine is closed.
            ConfigError: ``n_top`` makes no sense.
        """
        from edgedec.runtime.search.scores import score

        return score(self.streams.lending, prompt, n_top, is_over)

    def score_continuations(
        self, prompt: Prompt, continuations: Sequence[Sequence[int]]
    ) -> list[float]:
        """Returns how likely each of ``continuations`` is behind ``prompt``. Units: nats.

        Args:
            continuations: Token ids, at least one each.

        Raises:
            ConfigError: A continuation is empty.
            SessionError: The prompt is empty, it does not fit with a continuation, or the engine
                is closed.
        """
        from edgedec.runtime.search.scores import score_continuations

        return score_continuations(self.streams.lending, prompt, continuations)

    def embed(
        self,
        prompts: Sequence[Prompt],
        pooling: Pooling | None = None,
        is_over: Callable[[], bool] = lambda: False,
        *,
        prompt_name: str | None = None,
        most_tokens: int | None = None,
        n_dimensions: int | None = None,
    ) -> Float32:
        """Returns a vector of length 1 for each of ``prompts``, computed side by side.

        Texts that mean alike have vectors that point alike, as far as the model was trained for
        it: one that was trained to write does less well than one trained for embeddings.

        Args:
            pooling: The mean of all tokens' hidden states behind the final norm (in transformers
                ``last_hidden_state``), that of the first (``cls``) or that of the last token. None
                for what the model was trained with, the mean where it does not say.
            is_over: Asked between passes whether the caller gave up.
            prompt_name: Which of the model's prompts stands before plain text, such as ``query``;
                its default one when None.
            most_tokens: Longer texts are cut to so many tokens; 0 for the context. None refuses
                those that do not fit the context.
            n_dimensions: Numbers of a vector that are kept, the first; all when None. Only models
                trained for embeddings can have fewer.

        Shapes: [len(prompts), size]; [0, 0] if the caller gave up. The size is that of the hidden
        states, or what the model's last dense matrix makes of them.

        Raises:
            SessionError: A prompt is empty or too long, the bundle's graph returns no hidden
                states, or the engine is closed.
            ConfigError: An argument makes no sense, or the model has no such prompt.
        """
        from edgedec.runtime.engine.embeddings import EmbeddingOptions, embed

        options = EmbeddingOptions(pooling, prompt_name, most_tokens, n_dimensions)
        return embed(self.streams.lending_to_embed(), prompts, options, is_over)

    @property
    def embedding(self) -> EmbeddingConfig | None:
        """How texts become vectors, and its prompts, of an embedding model; None of others."""
        return self.loaded.embedding

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
        from edgedec.runtime.search.suggestions import suggest

        return suggest(self.streams.lending, prompt, config, on_progress)

    def quote(
        self,
        question: str,
        text: str,
        max_tokens: int = 30,
        on_progress: Progress | None = None,
    ) -> Quote:
        """Returns the span of ``text`` that the model finds likeliest as the answer.

        No span of up to ``max_tokens`` tokens is likelier, whatever greedy decoding would take. A
        long text is read in parts, each with the question; every span lies whole in one, and is as
        likely as it is there.

        Args:
            on_progress: Called with ("quote", parts read, parts in all).

        Raises:
            ConfigError: The question or the text is blank, or ``max_tokens`` makes no sense.
            SessionError: The question leaves no room for the text, or the engine is closed.
        """
        from edgedec.runtime.search.quoting import quote

        return quote(self.streams.lending, question, text, max_tokens, on_progress)

    def beam_search(
        self,
        prompt: Prompt,
        n_beams: int = 4,
        n_groups: int = 1,
        max_new_tokens: int = 64,
        diversity: float = 0.5,
        length_penalty: float = 1.0,
    ) -> list[Beam]:
        """Returns the texts that a beam search finds behind ``prompt``, the best first.

        Args:
            n_beams: Texts that are kept at every token.
            n_groups: Groups that they are divided into; 1 is plain beam search.
            diversity: What a token's log-probability loses for each beam of an earlier group that
                chose it.
            length_penalty: A text's score is its log-probability divided by its length to this
                power.

        Raises:
            ConfigError: An argument makes no sense.
            SessionError: Prompt and texts do not fit the context, the bundle's graph cannot compute
                them side by side, or the engine is closed.
        """
        from edgedec.runtime.search.beam_texts import find_beams
        from edgedec.runtime.search.beams import BeamConfig

        config = BeamConfig(n_beams, n_groups, diversity, length_penalty, max_new_tokens)
        return find_beams(self.streams.lending, prompt, config)

    def conversation(
        self,
        system: str | None = None,
        config: GenerationConfig | None = None,
        messages: Sequence[Message] = (),
        is_sliding: bool = False,
        **settings: Unpack[Settings],
    ) -> Conversation:
        """Returns a conversation, empty or begun by ``messages``.

        Args:
            system: System prompt, put before ``messages``.
            config: As for `stream`, for all turns.
            settings: As for `stream`, for all turns.
            messages: Earlier messages (``role`` and ``content``), such as those of a saved chat.
            is_sliding: When the context is full, the model is no longer given the oldest turns; it
                keeps the system prompt and the latest turns. Otherwise that is an error.

        Raises:
            SessionError: The bundle has no chat template, or a message is none.
        """
        from edgedec.runtime.engine.conversation import Conversation

        if not self.has_chat_template:
            raise SessionError(
                "this bundle has no chat template: use generate or stream with plain text"
            )
        if system is not None:
            check_type("system", system, str, "text or None")
            messages = [{"role": "system", "content": system}, *messages]
        return Conversation(self.streams, self._config_of(config, settings), messages, is_sliding)

    def _config_of(self, config: GenerationConfig | None, settings: Settings) -> GenerationConfig:
        """Returns ``config``, or the bundle's recommendation, changed by ``settings``."""
        if config is None:
            config = self.defaults
        check_type("config", config, GenerationConfig, "a GenerationConfig or None")
        return with_settings(config, settings) if settings else config

    def _of_batch(self, config: GenerationConfig | None, settings: Settings) -> GenerationConfig:
        """Returns what is asked of each of several requests that are made at once."""
        requested = self._config_of(config, settings)
        return requested if requested.priority else replace(requested, priority=BATCH)

    def learn(self, text: Sequence[int]) -> None:
        """Adds a text to the n-gram store, if there is one."""
        text = checked_counts("text", text)
        if (store := self.loaded.parts.drafters.store) is not None:
            with self.streams.at_rest():
                store.add(text)

    def forget_drafts(self) -> None:
        """Forgets what drafters learned from earlier requests, and their KV caches."""
        self.streams.forget_drafts()

    def forget_prompts(self) -> None:
        """Forgets what the KV caches of finished requests hold."""
        self.streams.forget_prompts()

    def save_session(
        self,
        path: str | Path,
        prompt: Sequence[int] | None = None,
        *,
        is_rounded: bool = False,
    ) -> None:
        """Writes what the KV caches used last hold, or is known of ``prompt``; the draft's too.

        Of a stream in progress that is what was computed so far. An older file at ``path`` is
        replaced when all of the new one is on the disk. Only the file's owner may read it, for it
        holds the text.

        is_rounded: Long texts take about a sixth of the space. Keys and values are rounded, so that
            what follows after `load_session` is approximate. That needs a KV cache of float16 or
            float32.

        Raises:
            SessionError: The file cannot be written, or the KV cache not be rounded.
        """
        self.check_sequential("sessions")
        check_type("is_rounded", is_rounded, bool, "True or False")
        memory, file = self.loaded.memory, checked_path("the session", path)
        known = None if prompt is None else checked_counts("prompt", prompt)
        with self.streams.at_rest():
            memory.save(file, known, is_rounded=is_rounded)

    def load_session(self, path: str | Path) -> int:
        """Makes the KV caches hold what `save_session` wrote; returns the number of tokens.

        The next prompt that begins with those tokens, or some of them, is not computed anew.

        Raises:
            SessionError: The file is damaged or of another model; everything stays as it was.
        """
        self.check_sequential("sessions")
        memory, file = self.loaded.memory, checked_path("the session", path)
        with self.streams.at_rest():
            return memory.load(file)

    def check_sequential(self, what: str) -> None:
        """Raises a SessionError where the model does not write from left to right.

        what: Called so in the error, as what needs a model that writes from left to right.
        """
        self.loaded.check_sequential(what)

    def close(self) -> None:
        """Stops all streams and releases the model. Closing twice is fine.

        Raises:
            SessionError: Another thread is computing a stream right now.
        """
        self.streams.close()
