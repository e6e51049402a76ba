"""Tiny draft heads for tests: features, trainings, logits of the graph and of torch."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.models.draft_heads import EAGLE, LIGHT_HEADS, head_features, own_features
from edgedec.models.manifest import BundleManifest, fingerprint_of, read_manifest
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.config import GenerationConfig, SamplingConfig, SpeculationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.sequences.passes import Pass, run_passes
from edgedec.runtime.sequences.prefill import ExactPrefiller, PrefillRequest
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

torch = pytest.importorskip("torch", reason="needs the extra train")

from edgedec.training.features.feature_file import (  # noqa: E402
    FeatureFile,
    TextFeatures,
)
from edgedec.training.heads import train_head as heads  # noqa: E402
from edgedec.training.heads.torch_head import TorchHead  # noqa: E402
from edgedec.training.loop import TrainingPlan  # noqa: E402

LAYERS = (1, 2)
N_LOGITS = 60
CONTEXT = 96


def read(bundle: Path, n_texts: int) -> list[TextFeatures]:
    """Returns texts that are much alike, with features."""
    manifest, texts = read_manifest(bundle), []
    epsilon = manifest.target.config.rms_norm_eps
    model = open_model(bundle, manifest.target, 1)
    for i in range(n_texts):
        sequence = TokenSequence(model, CONTEXT)
        rng = np.random.default_rng(i % 2)
        tokens: list[int] = rng.integers(4, 60, 48 + i).tolist()
        rows = sequence.forward(TokenTree.chain(tokens), range(len(tokens)), LAYERS)
        own = head_features(rows.hidden, LAYERS, epsilon)
        hidden = own[:, : len(LAYERS) * manifest.target.config.hidden_size]
        probs = np.exp(rows.stats.top_logits - rows.stats.log_sum_exp[:, None])
        texts.append(
            TextFeatures(
                (".a", ".b")[i % 2],
                np.array(tokens, np.int32),
                hidden.astype(np.float16),
                rows.stats.top_ids.astype(np.int32),
                probs.astype(np.float16),
            )
        )
    release_model(model)
    return texts


def feature_file(folder: Path, texts: list[TextFeatures]) -> FeatureFile:
    file = FeatureFile(folder, ("test",), texts[0].hidden.shape[1])
    for text in texts[len(file.lengths) :]:
        file.add(text)
    return file


def plan_of(kind: str = EAGLE, **fields: Any) -> heads.HeadPlan:
    training = {"n_epochs": 6, "n_steps": 3, "batch": 3, "learning_rate": 3e-3, **fields}
    return heads.HeadPlan(TrainingPlan(**training), N_LOGITS, kind=kind)


def trained(
    bundle: Path, folder: Path, texts: list[TextFeatures], plan: heads.HeadPlan, most: int = 10**9
) -> heads.TrainedHead:
    """Returns a head after at most so many steps."""
    n_left = [most]

    def is_over() -> bool:
        n_left[0] -= 1
        return n_left[0] < 0

    file = feature_file(folder, texts)
    manifest = read_manifest(bundle)
    return heads.train_head(bundle, manifest, file, len(LAYERS), plan, lambda *_: None, is_over)


def put(bundle: Path, head: heads.TrainedHead, destination: Path, scheme: str) -> BundleManifest:
    manifest = read_manifest(bundle)
    fingerprint = fingerprint_of(manifest, manifest.target_name)
    layers = LAYERS[-1:] if head.kind in LIGHT_HEADS else LAYERS
    entry = heads.head_entry(head, manifest.target, fingerprint, layers, scheme, "texts")
    return heads.put_head(bundle, manifest, head, entry, destination, False)


def torch_logits(
    bundle: Path, head: heads.TrainedHead, text: TextFeatures, n_steps: int
) -> list[np.ndarray]:
    """Returns the logits of each step, [T, N], computed in float32, zeros where it says nothing."""
    manifest = read_manifest(bundle)
    parent = heads.BundleWeights(bundle, manifest.target)
    embedding = {"embed_tokens.weight": parent.matrix("embed_tokens.weight")}
    model = TorchHead(head.config, embedding | head.weights, len(text.tokens), head.kind)
    with torch.no_grad():
        tokens = torch.from_numpy(text.tokens.astype(np.int64))[None]
        hidden = torch.from_numpy(text.hidden.astype(np.float32))[None]
        found = [logits[0].numpy() for logits in model(tokens, hidden, n_steps)]
    return [np.pad(rows, [(len(text.tokens) - len(rows), 0), (0, 0)]) for rows in found]


def graph_logits(bundle: Path, text: TextFeatures, shift: int = 1) -> list[np.ndarray]:
    """Returns the logits of the head's graph: of the text, and two drafted tokens deep."""
    entry = read_manifest(bundle).head
    assert entry is not None
    size, n = entry.head.config.hidden_size, len(text.tokens)
    model = open_model(bundle, entry.head, 1)
    sequence = TokenSequence(model, CONTEXT)
    known = np.zeros((n, entry.head.contract.can.features), np.float32)
    known[shift:, :-size] = text.hidden[: n - shift].astype(np.float32)
    tokens, found = text.tokens.tolist(), []
    rows = sequence.run(Pass(sequence, TokenTree.chain(tokens), range(n), (1,), features=known))
    found.append(rows.logits.copy())
    outputs = rows.hidden[1].copy()
    deep = [np.zeros_like(found[0]), np.zeros_like(found[0])]
    for place in range(2, n):
        # The text to `place` - 2 is committed; then its next two tokens as if they were drafted.
        sequence.truncate(0)
        committed = TokenTree.chain(tokens[: place - 1])
        sequence.run(Pass(sequence, committed, (), features=known[: place - 1]))
        sequence.commit(range(place - 1))
        own = own_features(outputs[place - 2 : place - 1], len(LAYERS))
        one = TokenTree.chain(tokens[place - 1 : place])
        rows = sequence.run(Pass(sequence, one, (0,), (1,), features=own))
        deep[0][place - 1] = rows.logits[0]
        own = own_features(rows.hidden[1].copy(), len(LAYERS))
        two = TokenTree.chain(tokens[place - 1 : place + 1])
        rows = sequence.run(Pass(sequence, two, (1,), n_known=1, features=own))
        deep[1][place] = rows.logits[0]
    release_model(model)
    return [*found, *deep]


def check_text(
    bundle: Path,
    method: str,
    temperature: float,
    speculation: SpeculationConfig | None = None,
) -> None:
    """Checks that ``method`` leaves the text of plain decoding, and that something was drafted."""
    n_proposed = 0
    with edgedec.load(bundle) as engine:
        for seed, prompt in enumerate(["hello", "1212 1212 hello he", "   w"]):
            request = GenerationConfig(
                max_new_tokens=24,
                ignore_eos=True,
                seed=seed,
                sampling=SamplingConfig(temperature=temperature),
                speculation=speculation or SpeculationConfig(),
            )
            plain = engine.generate(prompt, dataclasses.replace(request, method="plain"))
            found = engine.generate(prompt, dataclasses.replace(request, method=method))
            assert found.token_ids == plain.token_ids
            assert not found.stats.failed_drafters
            n_proposed += found.stats.n_proposed
    assert n_proposed or method == "auto"


def check_reload(bundle: Path, method: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks a text that goes on in another engine, which loads the session of the first.

    The text is the same, something is drafted, and the head reads none of what was read before.
    """
    request = GenerationConfig(max_new_tokens=20, ignore_eos=True, method=method)
    with edgedec.load(bundle) as engine:
        first = engine.encode("1212 1212 hello he")
        text = [*first, *engine.generate(first, request).token_ids, 5, 6, 7]
        engine.save_session(folder / "session")
        expected = engine.generate(text, dataclasses.replace(request, method="plain")).token_ids
    reads: list[Pass] = []
    begin = TokenSequence.begin

    def watched(sequence: TokenSequence, wanted: Pass) -> None:
        reads.append(wanted)
        begin(sequence, wanted)

    with edgedec.load(bundle) as engine:
        n_known = engine.load_session(folder / "session")
        monkeypatch.setattr(TokenSequence, "begin", watched)
        found = engine.generate(text, request)
    assert found.token_ids == expected
    assert found.stats.n_reused_tokens == n_known == len(text) - 4
    assert found.stats.n_proposed > 0
    head = next(wanted.tree.tokens for wanted in reads if wanted.features is not None)
    anew = (*text[n_known:], expected[0])
    assert head == anew[-len(head) :]


def check_cancel(
    bundle: Path,
    method: str,
    n_passes: int,
    monkeypatch: pytest.MonkeyPatch,
    speculation: SpeculationConfig | None = None,
) -> None:
    """Checks that an interrupt in each of the first passes leaves a text that goes on as plain."""
    request = GenerationConfig(
        max_new_tokens=12,
        ignore_eos=True,
        method=method,
        speculation=speculation or SpeculationConfig(),
    )
    begin, n_left = TokenSequence.begin, [0]

    def interrupted(sequence: TokenSequence, wanted: Pass) -> None:
        n_left[0] -= 1
        if n_left[0] == 0:
            raise KeyboardInterrupt
        begin(sequence, wanted)

    with edgedec.load(bundle) as engine:
        plain = engine.generate("hello", dataclasses.replace(request, method="plain"))
        for n in range(1, n_passes + 1):
            n_left[0] = n
            with monkeypatch.context() as patch:
                patch.setattr(TokenSequence, "begin", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    engine.generate("hello", request)
            assert engine.generate("hello", request).token_ids == plain.token_ids
            check_rows(engine, [*engine.encode("hello"), *plain.token_ids][:-1])


def check_rows(engine: Engine, text: list[int]) -> None:
    """Checks that what requests left of ``text`` is what computing it anew leaves, bit for bit."""
    with engine.borrowed(text) as sequence:
        assert list(sequence.tokens) == text[: sequence.n_tokens]
        assert sequence.n_tokens >= len(text) - 1
        kept = sequence.snapshot()
    fresh = engine.new_sequence()
    stats = engine.generate("hello", GenerationConfig(method="plain", max_new_tokens=1)).stats
    run_passes(ExactPrefiller().prefill(fresh, list(kept.tokens), PrefillRequest(stats)))
    for name, rows in fresh.snapshot().kv_rows.items():
        assert rows.tobytes() == kept.kv_rows[name].tobytes()
    fresh.close()
