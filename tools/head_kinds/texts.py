"""Texts of a bundle's own model, kept in a folder: to learn from, and to measure with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from edgedec.models.manifest import fingerprint_of, read_manifest
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.prompt_files import read_prompts
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.system.files import replace_text
from edgedec.training.features.feature_file import FeatureFile, TextFeatures
from edgedec.training.features.feature_reader import FeatureReader
from edgedec.training.features.own_answers import OwnAnswers, prompt_end
from edgedec.training.features.reading import own_prompts

_AT_ONCE = 16
_STARTS = "starts.json"


@dataclass(frozen=True)
class Answers:
    """Greedy answers, their prompts before them. starts: the first token of each answer."""

    texts: list[TextFeatures]
    starts: list[int]


def read_own_texts(
    bundle: Path, folder: Path, prompts: Sequence[Path], n_tokens: int
) -> list[TextFeatures]:
    """Returns texts of ``n_tokens`` that the model of ``bundle`` wrote, prompts included."""
    file = _file(bundle, folder, (*map(_digest, prompts), n_tokens))
    if file.n_tokens < n_tokens:
        with _loaded(bundle) as engine:
            answers = OwnAnswers(engine, 0.3, _AT_ONCE, lambda: False)
            _reader(bundle, engine, file).write(
                own_prompts((), list(prompts), engine), n_tokens, answers
            )
    return file.texts()


def read_answers(bundle: Path, folder: Path, prompts: Sequence[Path], n: int) -> Answers:
    """Returns the answers to the first ``n`` prompts of each file."""
    file, starts = _file(bundle, folder, (*map(_digest, prompts), n)), folder / _STARTS
    if not starts.is_file():
        with _loaded(bundle) as engine:
            encoded = list(_encoded(engine, prompts, n))
            answers = OwnAnswers(engine, 0.0, _AT_ONCE, lambda: False)
            _reader(bundle, engine, file).write(encoded, 1 << 60, answers)
            ends = [len(prompt_end(prompt, engine.context)) for prompt in encoded]
        replace_text(starts, json.dumps(ends))
    return Answers(file.texts(), json.loads(starts.read_text(encoding="utf-8")))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _encoded(engine: Engine, prompts: Sequence[Path], n: int) -> Iterator[list[int]]:
    for path in prompts:
        for prompt in islice(read_prompts([path]), n):
            yield prompt.encode(engine, engine.has_chat_template)


def _loaded(bundle: Path) -> Engine:
    return load(bundle, EngineOptions(threads=1, draft=False))


def _file(bundle: Path, folder: Path, key: Iterable[object]) -> FeatureFile:
    manifest = read_manifest(bundle)
    target = manifest.target
    known = fingerprint_of(manifest, manifest.target_name), *key
    width = len(target.contract.can.hidden) * target.config.hidden_size
    return FeatureFile(folder, known, width)


def _reader(bundle: Path, engine: Engine, file: FeatureFile) -> FeatureReader:
    target = read_manifest(bundle).target

    def report(phase: str, done: int, total: int) -> None:
        if phase == "write":
            print(f"\r{phase} {done:,}", end="", flush=True)

    layers, epsilon = target.contract.can.hidden, target.config.rms_norm_eps
    return FeatureReader(engine, layers, epsilon, file, report, lambda: False)
