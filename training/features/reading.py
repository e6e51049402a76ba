"""What trainings read: texts, earlier drafts that failed, and what the model writes itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain, cycle
from pathlib import Path

from edgedec.models.errors import ConfigError
from edgedec.models.manifest import BundleManifest, fingerprint_of
from edgedec.runtime.engine.at_once import choose_n_at_once
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.prompt_files import read_prompts
from edgedec.runtime.engine.replay_buffer import ReplayBuffer
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.system.locks import lock_folder
from edgedec.training.features.corpus import Corpus
from edgedec.training.features.feature_file import FeatureFile, held_out_of, is_held_out
from edgedec.training.features.feature_reader import SHORTEST, WINDOW, FeatureReader, beginnings
from edgedec.training.features.own_answers import OwnAnswers
from edgedec.training.features.written_texts import read_written
from edgedec.training.options import Clock, TrainingOptions

REPLAY = "replay"
"""Kind of texts in which drafts did not come true."""


@contextmanager
def features_of(
    bundle: Path,
    manifest: BundleManifest,
    options: TrainingOptions,
    output: Path,
    report: Callable[[str, int, int], None],
    clock: Clock,
    replay: Sequence[Path] = (),
    layers: tuple[int, ...] = (),
    last: int | None = None,
) -> Iterator[tuple[FeatureFile, int]]:
    """Yields the features that ``output`` learns from, and how many files were skipped.

    They are removed in the end, unless they are to be kept, or the training was stopped or failed
    though there was something to learn from.

    replay: texts that `--adapt` kept. layers: whose hidden states are read. last: number of the
    last of the kept texts that is read; None: all are.

    Raises:
        ConfigError: The corpus or the prompts cannot be read, or another training uses the folder.
        BundleError: The bundle is broken.
        OSError: The disk is full.
    """
    folder = options.features or output.absolute().with_name(f".{output.name}.features")
    config = manifest.target.config
    known = fingerprint_of(manifest, manifest.target_name), layers
    kept = [
        text
        for path in replay
        for number, text in ReplayBuffer.of_bundle(path, bundle).numbered(config.vocab_size).items()
        if last is None or number <= last
    ]
    replayed = [(REPLAY, text) for text in with_latest_held_out(kept, options.max_tokens)]
    texts, prompts = options.corpus or [], options.prompts or []
    written = None
    if options.written is not None:
        written = read_written(options.written, known[0], config.vocab_size)
    key = (*known, *map(Path.absolute, (*texts, *prompts)), *replayed, options.temperature, written)
    with _alone_in(folder):
        file = FeatureFile(folder, key, len(layers) * config.hidden_size)
        n_most = min(options.max_tokens, options.cache_mb * 10**6 // file.token_nbytes)
        n_own = min(options.n_self if written is None else sum(map(len, written.texts)), n_most)
        corpus = Corpus(tuple(texts), min(WINDOW, manifest.target.context))
        with load(bundle, EngineOptions(threads=options.threads, draft=False)) as engine:
            encode, epsilon = engine.tokenizer.encode, config.rms_norm_eps
            reader = FeatureReader(engine, layers, epsilon, file, report, clock.is_reading_over)
            reader.read(chain(replayed, corpus.windows(encode)), n_most - n_own)
            if written is not None:
                reader.write((), n_own, lambda _, first: (text for text in written.texts[first:]))
            elif n_own:
                n_at_once = choose_n_at_once(options.parallel, engine)
                answers = OwnAnswers(engine, options.temperature, n_at_once, clock.is_reading_over)
                reader.write(own_prompts(texts, prompts, engine), n_own, answers)
        is_over = False
        try:
            yield file, corpus.n_skipped
            is_over = not clock.is_stopping()
        finally:
            if options.features is None and (is_over or not file.n_tokens):
                shutil.rmtree(folder, ignore_errors=True)


def with_latest_held_out(texts: Sequence[list[int]], n_tokens: int) -> list[list[int]]:
    """Returns texts of at most ``n_tokens``, in an order in which the latest are held out.

    So a head is measured with what was written after all that it learned. The same holds for the
    head that a training goes on from: what was held out then is not older than what is now.

    texts: the latest first.
    """
    long = [text for text in texts if len(text) >= SHORTEST]
    ends = accumulate(map(len, long))
    chosen = [text for text, end in zip(long, ends, strict=True) if end <= n_tokens]
    n_held_out = len(held_out_of(chosen))
    latest, others = iter(chosen[:n_held_out]), iter(chosen[n_held_out:])
    return [next(latest if is_held_out(i) else others) for i in range(len(chosen))]


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Makes the folder, which no other training may use meanwhile.

    Raises:
        ConfigError: Another one does, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(folder)
    except OSError as error:
        raise ConfigError(f"cannot make {folder}: {error.strerror}") from None
    if lock is None:
        raise ConfigError(
            f"another training uses {folder}: wait until it ends, or choose another path with -o "
            "or --features"
        )
    try:
        yield
    finally:
        os.close(lock)


def own_prompts(texts: Sequence[Path], prompts: list[Path], engine: Engine) -> Iterator[list[int]]:
    """Yields what the model is asked, over and over; without prompts beginnings of the texts.

    Every second text to fill in is asked for as `InfillTokens.typing_prompt` does.
    """
    if not prompts:
        windows = Corpus(tuple(texts), min(WINDOW, engine.context)).windows(engine.tokenizer.encode)
        return beginnings(windows)
    is_chat = engine.has_chat_template
    return cycle(
        [
            prompt.encode_infill(engine, is_typing=True)
            if prompt.suffix is not None and i % 2
            else prompt.encode(engine, is_chat)
            for i, prompt in enumerate(read_prompts(prompts))
        ]
    )
