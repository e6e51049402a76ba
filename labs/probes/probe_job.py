"""Fits probes for a pair of models, and puts them into the target model's bundle."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from edgedec.export.manifest_change import change_manifest
from edgedec.labs.probes.logistic import Float32, Logistic, fit_logistic
from edgedec.labs.probes.pair_rows import Labelled, Reader, read_text
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import PROBES_KEY, BundleManifest, fingerprint_of, read_manifest
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.drafting.probe import DRAFT, N_EXTRA, N_STATS, PROBE_KINDS, Probe
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.methods.draft_source import DraftSource
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.runtime.sequences.prefill import Progress
from edgedec.training.features.corpus import Corpus
from edgedec.training.features.feature_file import HELD_OUT
from edgedec.training.features.feature_reader import WINDOW

PENALTIES = (100.0, 1000.0, 10_000.0, 100_000.0)
"""Of squared weights of hidden states: the one is taken that does best on texts held out."""

_OWN_PENALTY = 1.0  # of the other weights, which are few

_LEAST_ROWS = 30


@dataclass(frozen=True)
class ProbeJob:
    """What is asked for. draft: a bundle whose model drafts; True for the bundle's own."""

    bundle: Path
    corpus: tuple[Path, ...]
    draft: Literal[True] | Path = True
    max_tokens: int = 40_000
    threads: int | None = None


@dataclass(frozen=True)
class Fitted:
    """A regression and how good it is.

    rate: share of the rows that are right. held_out, plain: mean surprise at rows of texts held
    out, with hidden states and without. Units: nats.
    """

    logistic: Logistic
    n_rows: int
    rate: float
    held_out: float
    plain: float

    def facts(self, job: ProbeJob, n_tokens: int) -> dict[str, Any]:
        """Returns what the manifest says of it, JSON-ready."""
        return {
            "corpus": ", ".join(map(str, job.corpus)),
            "n_tokens": n_tokens,
            "n_rows": self.n_rows,
            "rate": round(self.rate, 4),
            "held_out": round(self.held_out, 4),
            "plain": round(self.plain, 4),
        }


@dataclass(frozen=True)
class ProbeReport:
    """What was fitted, by kind."""

    bundle: Path
    facts: dict[str, dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields."""
        return {"bundle": str(self.bundle), "probes": self.facts}

    def text(self) -> str:
        """Returns what people read."""
        about = {
            DRAFT: "how likely the target model takes the draft model's next token",
            "judge": "how likely a drafted token is right that the target model would not take",
        }
        lines = [
            f"{self.bundle}: {kind}, {about[kind]}: {facts['rate']:.1%} of {facts['n_rows']:,} "
            f"rows; it misses by {facts['held_out']:.4f} nats, without hidden states by "
            f"{facts['plain']:.4f}"
            for kind, facts in self.facts.items()
        ]
        return "\n".join(lines) + "\n"


def train_bundle_probes(
    job: ProbeJob, report: Progress, is_stopping: Callable[[], bool]
) -> ProbeReport:
    """Fits the probes that ``job`` asks for, and names them in the bundle's manifest.

    Raises:
        ConfigError: There is no draft model, the models do not go together, or the corpus is too
            small.
    """
    manifest = read_manifest(job.bundle)
    loading = EngineOptions(threads=job.threads, draft=job.draft, prefix_cache_mb=0)
    with load(job.bundle, loading) as engine:
        source = _checked_draft(engine, manifest.target)
        found = _read(job, engine, source, manifest, report, is_stopping)
    target = fingerprint_of(manifest, manifest.target_name)
    probes, facts = {}, {}
    for kind in PROBE_KINDS:
        fitted = fit_probe(*found.of(kind), kind)
        facts[kind] = fitted.facts(job, found.n_tokens)
        reads, other = (
            (source.fingerprint, target) if kind == DRAFT else (target, source.fingerprint)
        )
        config = source.entry.config if kind == DRAFT else manifest.target.config
        weights = fitted.logistic.weights.astype(np.float32)
        probe = Probe(
            kind, reads, other, weights, fitted.logistic.bias, config.n_layers,
            config.rms_norm_eps, facts[kind],
        )  # fmt: skip
        probes[kind] = probe.to_dict()

    def put(now: BundleManifest) -> BundleManifest:
        return dataclasses.replace(now, defaults={**now.defaults, PROBES_KEY: probes})

    change_manifest(job.bundle, manifest, put)
    return ProbeReport(job.bundle, facts)


def fit_probe(
    inputs: Float32,
    is_right: np.ndarray[Any, np.dtype[np.bool_]],
    texts: np.ndarray[Any, Any],
    kind: str,
) -> Fitted:
    """Returns the regression that does best on texts held out.

    Raises:
        ConfigError: There are too few rows, or all are alike.
    """
    is_held_out = texts % HELD_OUT == 1
    for part in (is_right[is_held_out], is_right[~is_held_out]):
        if len(part) < _LEAST_ROWS or part.all() or not part.any():
            raise ConfigError(
                f"of {len(part)} rows for the probe {kind}, {part.sum()} are right, expected at "
                f"least {_LEAST_ROWS} of both kinds: name more texts, or a draft model that the "
                "target model does not always agree with"
            )
    known, right = inputs[~is_held_out], is_right[~is_held_out]
    n_read = inputs.shape[1] - N_STATS - N_EXTRA[kind]
    own = np.full(inputs.shape[1] - n_read, _OWN_PENALTY)
    fits = [
        fit_logistic(known, right, np.append(np.full(n_read, penalty), own))
        for penalty in PENALTIES
    ]
    missed = [fit.surprise(inputs[is_held_out], is_right[is_held_out]) for fit in fits]
    best = int(np.argmin(missed))
    alone = fit_logistic(known[:, n_read:], right, own)
    plain = alone.surprise(inputs[is_held_out][:, n_read:], is_right[is_held_out])
    return Fitted(fits[best], len(inputs), float(is_right.mean()), missed[best], plain)


def _checked_draft(engine: Engine, target: ModelEntry) -> DraftSource:
    source = engine.draft
    if source is None:
        raise ConfigError(
            "probes are about what a draft model drafts, and this bundle has none: name one with "
            "--draft"
        )
    for name, entry in (("target", target), ("draft", source.entry)):
        if entry.config.n_layers not in entry.contract.can.hidden:
            raise ConfigError(
                f"the {name} model's graph returns no hidden states of its last layer, which a "
                "probe reads: export it again, for --target cpu"
            )
    if source.tokenizers is not None:
        raise ConfigError(
            "a probe compares the models token by token, but the draft model has a tokenizer of "
            "its own: choose one with the target model's"
        )
    return source


def _read(
    job: ProbeJob,
    engine: Engine,
    source: DraftSource,
    manifest: BundleManifest,
    report: Progress,
    is_stopping: Callable[[], bool],
) -> Labelled:
    """Returns what both models show of the corpus."""
    found, role = Labelled(), source.open()
    try:
        own, other = manifest.target.config, source.entry.config
        target = Reader(engine.new_sequence(), own.n_layers, own.rms_norm_eps)
        draft = Reader(role.pool.take(()), other.n_layers, other.rms_norm_eps, role.token_map.names)
        room = min(WINDOW, engine.context, source.context)
        for _, tokens in Corpus(job.corpus, room).windows(engine.tokenizer.encode):
            if found.n_tokens >= job.max_tokens or is_stopping():
                break
            if len(tokens) > 1:
                read_text(draft, target, tokens, found)
                report("read", min(found.n_tokens, job.max_tokens), job.max_tokens)
    finally:
        role.close()
    if not found.n_texts:
        raise ConfigError("the corpus holds no text: name other files with --corpus")
    return found
