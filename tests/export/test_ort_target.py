"""Bundles for ONNX Runtime's providers, from file to text: methods, sessions, providers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import edgedec
from edgedec import BundleError, ConfigError, Engine, EngineOptions, GenerationConfig
from edgedec.export.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.manifest import read_manifest
from edgedec.models.reference import ReferenceModel
from edgedec.runtime.backends import ort
from edgedec.runtime.sessions.sequence import TokenSequence
from edgedec.runtime.sessions.token_tree import TokenTree
from edgedec.targets.providers import PROVIDERS, provider_of

from .conftest import tiny_weights

GgufMaker = Callable[..., Path]

PROMPT = "he hello hello he hello he 12 12 he hello hello he"
MAX_GAP = 0.1
"""Of the spread of the logits: by how much float32 may prefer another token."""


@pytest.fixture(scope="module")
def gguf(make_gguf: GgufMaker) -> Path:
    """Q4_1, of matrices that leave the size of what they multiply as it is."""
    weights = {
        name: np.float32(values.shape[1] ** -0.5) * values if values.ndim == 2 else 1 + 0.1 * values
        for name, values in tiny_weights().items()
    }
    return make_gguf("llama", "Q4_1", weights)


@pytest.fixture(scope="module")
def bundle(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ort") / "b"
    export(ExportConfig(str(gguf), path, device_target="ort", context=128))
    return path


@pytest.fixture(scope="module")
def engine(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    store = tmp_path_factory.mktemp("store") / "texts"
    with edgedec.load(bundle, EngineOptions(threads=2, draft=bundle, store=store)) as engine:
        yield engine


def gaps(gguf: Path, prompt: Sequence[int], answer: Sequence[int]) -> tuple[float, float]:
    """Returns by how much float32 prefers other tokens at most, and the spread of its logits."""
    model = ReferenceModel(open_checkpoint(str(gguf)))
    logits = model.forward([*prompt, *answer[:-1]]).logits[len(prompt) - 1 :]
    found = logits.max(axis=1) - logits[np.arange(len(answer)), list(answer)]
    return float(found.max()), float(logits.std())


@pytest.mark.parametrize(
    "method", ["plain", "auto", "lookup", "recycling", "trigram", "store", "draft"]
)
def test_methods_write_what_float32_would(gguf: Path, engine: Engine, method: str) -> None:
    config = GenerationConfig(max_new_tokens=32, method=method, ignore_eos=True)
    for _ in range(2):
        result = engine.generate(PROMPT, config)
        prompt = engine.tokenizer.encode(PROMPT)
        assert result.n_prompt_tokens == len(prompt)
        largest, spread = gaps(gguf, prompt, result.token_ids)
        assert largest < MAX_GAP * spread
        assert result.lossless == "up to ties"
        assert 0 < result.largest_gap < spread


def test_the_manifest_states_the_gap(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    gap = manifest.target.contract.can.row_gap
    assert gap == manifest.verification["row_gap"] > 0
    path = bundle / "manifest.json"
    assert json.loads(path.read_text())["models"]["target"]["contract"]["can"]["row_gap"] == gap


def test_a_session_goes_on_where_it_ended(bundle: Path, tmp_path: Path) -> None:
    config = GenerationConfig(max_new_tokens=12, ignore_eos=True, method="plain")
    with edgedec.load(bundle, EngineOptions(threads=1)) as engine:
        engine.generate(PROMPT, config)
        engine.save_session(tmp_path / "session")
    with edgedec.load(bundle, EngineOptions(threads=1)) as engine:
        n_held = engine.load_session(tmp_path / "session")
        result = engine.generate(PROMPT, config)
        assert result.stats.n_reused_tokens == result.n_prompt_tokens - 1 < n_held


def as_chain(sequence: TokenSequence, tokens: Sequence[int]) -> Any:
    """Returns the logits after a text that is computed anew."""
    sequence.truncate(0)
    rows = sequence.forward(TokenTree.chain(tokens), [len(tokens) - 1])
    sequence.commit(range(len(tokens)))
    return rows.logits[0].copy()


def test_rows_beside_a_path_are_hidden_and_then_dropped(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of trees of four the third is kept; every few trees the rows are moved together."""
    monkeypatch.setattr(ort, "_MAX_HIDDEN_ROWS", 7)
    gap = read_manifest(bundle).target.contract.can.row_gap
    with edgedec.load(bundle, EngineOptions(threads=1)) as engine:
        sequence, other = engine.new_sequence(), engine.new_sequence()
        as_chain(sequence, text := [7, 8, 9])
        for i in range(10):
            tree = TokenTree((20 + i, 30 + i, 40 + i, 50 + i), (-1, -1, 0, 2))
            logits = sequence.forward(tree, [2, 3]).logits.copy()
            expected = as_chain(other, [*text, 20 + i, 40 + i])
            np.testing.assert_allclose(logits[0], expected, rtol=0, atol=4 * gap)
            sequence.commit((0, 2))
            text += [20 + i, 40 + i]
        state = sequence.snapshot()
        sequence.truncate(5)
        sequence.restore(replace(state))
        last = sequence.forward(TokenTree.chain([99]), [0]).logits[0]
        np.testing.assert_allclose(last, as_chain(other, [*text, 99]), rtol=0, atol=4 * gap)


def test_a_tree_may_be_the_first_pass(bundle: Path) -> None:
    gap = read_manifest(bundle).target.contract.can.row_gap
    with edgedec.load(bundle, EngineOptions(threads=1)) as engine:
        sequence, other = engine.new_sequence(), engine.new_sequence()
        found = sequence.forward(TokenTree((7, 8, 9, 10), (-1, 0, 0, 2)), [1, 3]).logits.copy()
        for row, text in zip(found, ([7, 8], [7, 9, 10]), strict=True):
            np.testing.assert_allclose(row, as_chain(other, text), rtol=0, atol=4 * gap)
        sequence.commit((0, 2))
        after = sequence.forward(TokenTree.chain([11]), [0]).logits[0]
        np.testing.assert_allclose(after, as_chain(other, [7, 9, 11]), rtol=0, atol=4 * gap)


def test_the_cpu_is_a_provider_of_every_bundle(bundle: Path, gguf: Path, tmp_path: Path) -> None:
    export(ExportConfig(str(gguf), tmp_path / "cpu", context=64))
    for path in (bundle, tmp_path / "cpu"):
        with edgedec.load(path, EngineOptions(threads=1, provider="cpu")) as engine:
            assert engine.generate("he", GenerationConfig(max_new_tokens=2)).n_new_tokens == 2


@pytest.mark.robustness
@pytest.mark.parametrize("name", ["gpu", "", "CPUExecutionProvider", "cuda\n", 3])
def test_an_unknown_provider_is_named(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"^provider is [^\n]*expected [^\n]*$"):
        EngineOptions(provider=name)


@pytest.mark.robustness
def test_a_missing_provider_says_what_brings_it(bundle: Path) -> None:
    here = onnxruntime.get_available_providers()
    name = next(name for name, found in PROVIDERS.items() if found.ort_name not in here)
    with pytest.raises(ConfigError, match=f"{name} is not part of .* has cpu.*: pip") as caught:
        edgedec.load(bundle, EngineOptions(provider=name))
    assert "\n" not in str(caught.value)


@pytest.mark.robustness
def test_a_bundle_of_another_target_is_refused(gguf: Path, tmp_path: Path) -> None:
    export(ExportConfig(str(gguf), tmp_path / "cpu", context=64))
    with pytest.raises(ConfigError, match="runs on cpu: export the model with --target ort"):
        edgedec.load(tmp_path / "cpu", EngineOptions(provider="cuda"))


@pytest.mark.robustness
def test_a_provider_that_does_not_start_is_named(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime goes on without a provider that fails, and says so on standard error only."""
    name = next(
        name
        for name, found in PROVIDERS.items()
        if found.ort_name not in onnxruntime.get_available_providers()
    )
    everyone = [provider.ort_name for provider in PROVIDERS.values()]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: everyone)
    with (
        pytest.warns(UserWarning, match="not in available provider names"),
        pytest.raises(BundleError, match=f"provider {name} is installed but does not start"),
    ):
        edgedec.load(bundle, EngineOptions(provider=name))


def test_providers_have_names_of_their_own() -> None:
    assert len({provider.ort_name for provider in PROVIDERS.values()}) == len(PROVIDERS)
    for provider in PROVIDERS.values():
        assert provider_of(provider.ort_name) is provider
    with pytest.raises(ConfigError, match="no provider 'Abacus'"):
        provider_of("Abacus")
