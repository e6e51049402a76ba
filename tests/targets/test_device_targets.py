"""Bundles whose kernels are not batch-invariant, from file to text: methods, sessions, trees."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec import Engine, EngineOptions, GenerationConfig
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.graph import ROUNDING_GAP
from edgedec.models.manifest import read_manifest
from edgedec.models.reference import ReferenceModel
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.targets import device_module

GgufMaker = Callable[..., Path]

BACKENDS = ("ort", "ort in float16", "openvino", "openvino with static sizes")
PROMPT = "he hello hello he hello he 12 12 he hello hello he"
MAX_GAP = 0.1
"""Of the spread of the logits: by how much float32 may prefer another token."""


@pytest.fixture(scope="module", params=BACKENDS)
def case(request: pytest.FixtureRequest) -> Iterator[str]:
    """A target and more; with static sizes the CPU runs graphs that are meant for NPUs."""
    name, _, rest = str(request.param).partition(" ")
    with pytest.MonkeyPatch.context() as patch:
        if name == "openvino":
            pytest.importorskip("openvino")
            backend = device_module("run", "openvino")
            patch.setattr(backend, "STATIC_DEVICES", ("CPU",) if rest else ())
        yield str(request.param)


@pytest.fixture(scope="module")
def bundle(smooth_gguf: Path, case: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, target = tmp_path_factory.mktemp("bundle") / "b", case.split()[0]
    kv_format: str | None = "float16" if "float16" in case else None
    export(
        ExportConfig(str(smooth_gguf), path, device_target=target, kv_format=kv_format, context=128)
    )
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
def test_methods_write_what_float32_would(smooth_gguf: Path, engine: Engine, method: str) -> None:
    config = GenerationConfig(max_new_tokens=32, method=method, ignore_eos=True)
    for _ in range(2):
        result = engine.generate(PROMPT, config)
        prompt = engine.tokenizer.encode(PROMPT)
        assert result.n_prompt_tokens == len(prompt)
        largest, spread = gaps(smooth_gguf, prompt, result.token_ids)
        assert largest < MAX_GAP * spread
        assert result.lossless == "up to ties"
        assert 0 < result.largest_gap < spread


def test_the_manifest_states_the_gap(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    gap = manifest.target.contract.can.row_gap
    assert gap == max(ROUNDING_GAP, manifest.verification["row_gap"])
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


def is_near(logits: Any, expected: Any) -> bool:
    """Whether only rounding lies between two rows: of activations, too, which have 8 bits here.

    Where one is rounded otherwise, logits differ by hundredths of their spread from then on.
    """
    return bool(np.abs(logits - expected).max() < MAX_GAP * expected.std())


def test_rows_beside_a_path_are_hidden_and_then_dropped(
    bundle: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of trees of four the third is kept; every few trees the rows are moved together."""
    backend = device_module("run", case.split()[0])
    monkeypatch.setattr(backend, "_MAX_HIDDEN_ROWS", 7)
    with edgedec.load(bundle, EngineOptions(threads=1)) as engine:
        sequence, other = engine.new_sequence(), engine.new_sequence()
        as_chain(sequence, text := [7, 8, 9])
        for i in range(10):
            tree = TokenTree((20 + i, 30 + i, 40 + i, 50 + i), (-1, -1, 0, 2))
            logits = sequence.forward(tree, [2, 3]).logits.copy()
            assert is_near(logits[0], as_chain(other, [*text, 20 + i, 40 + i]))
            assert not is_near(logits[0], as_chain(other, [*text, 20 + i, 30 + i, 40 + i]))
            sequence.commit((0, 2))
            text += [20 + i, 40 + i]
        state = sequence.snapshot()
        sequence.truncate(5)
        sequence.restore(replace(state))
        last = sequence.forward(TokenTree.chain([99]), [0]).logits[0]
        assert is_near(last, as_chain(other, [*text, 99]))


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
