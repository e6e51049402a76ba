"""Switching between two real graphs: rows after catch-up, and whose text it is, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_models import open_graph_model

from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.messages import save_model
from edgedec.kernels import library
from edgedec.models.families import weight_shapes
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.decoding.strategy import DecodingStrategy
from edgedec.runtime.decoding.switching.paired_model import PairedModel
from edgedec.runtime.decoding.switching.switching import Switching
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.token_map import TokenMap

from ..runtime import draft_toys
from ..runtime.conftest import OnePool
from ..runtime.decoding.switching.replay import ReplayPolicy

pytestmark = pytest.mark.parity

CONTEXT = 320
PROMPT = [3, 80, 7, 7, 41, 0, 12, 66, 5, 19]
SAMPLINGS = [
    SamplingConfig(frequency_penalty=1.0),
    SamplingConfig(temperature=0.7),
    SamplingConfig(temperature=0.9, top_k=9, repetition_penalty=1.2),
]
SETTINGS = [
    "ead:threshold=5.7,window=3,dwell=2",
    "margin:threshold=0.97,window=2,dwell=1",
    "bild:fallback=0.07",
]
OpenPair = Callable[[], tuple[TokenSequence, TokenSequence]]


@pytest.fixture(scope="module")
def open_pair(make_source: Any, tmp_path_factory: pytest.TempPathFactory) -> OpenPair:
    """Returns a maker of two sessions: a tiny model, and the same without its last layer."""
    if not library.has_library():
        pytest.skip("the kernel library is not built")
    target = make_source(max_positions=CONTEXT)
    draft = make_source(max_positions=CONTEXT, n_layers=2)
    draft.weights = {name: target.weights[name] for name in draft.weights}
    folder: Path = tmp_path_factory.mktemp("pair")
    for name, source in (("target", target), ("draft", draft)):
        shapes = weight_shapes(source.config)
        formats = {matrix: source.format(matrix) for matrix, s in shapes.items() if len(s) == 2}
        graph = fuse(emit_portable(source.config, ()), source.config, formats)
        (folder / name).mkdir()
        write_weights(graph, source, folder / name)
        save_model(graph, folder / name / "model.onnx")

    def open_one(name: str) -> TokenSequence:
        config = target.config if name == "target" else draft.config
        return TokenSequence(open_graph_model(folder / name / "model.onnx", config, 1), CONTEXT)

    return lambda: (open_one("target"), open_one("draft"))


def role_of(draft: TokenSequence) -> DraftRole:
    """Returns the draft model for whoever takes turns with it."""
    n_ids = draft.vocab_size
    return DraftRole(OnePool(draft), TokenMap.same(n_ids, n_ids), n_ids)


def generate(
    session: TokenSequence, sampling: SamplingConfig, strategy: DecodingStrategy | None = None
) -> GenerationResult:
    config = GenerationConfig(max_new_tokens=90, seed=3, sampling=sampling)
    return draft_toys.generate(session, PROMPT, config, strategy)


def test_rows_after_catch_up_equal_those_of_a_session_that_saw_every_token(
    open_pair: OpenPair,
) -> None:
    rng = np.random.default_rng(0)
    text = [*PROMPT, *rng.integers(0, 83, 300).tolist()]
    steady, _ = open_pair()
    rows = []
    for token in text:
        rows.append(steady.forward(TokenTree.chain([token]), (0,)).logits[0].copy())
        steady.commit((0,))
    late, _ = open_pair()
    model, n_seen = PairedModel(late, len(PROMPT)), 0
    gaps: list[int] = []
    while n_seen < len(text):
        n_seen = min(len(text), n_seen + int(rng.choice([1, 2, 7, 33, 64, 150])))
        n_rows = min(int(rng.integers(1, 20)), n_seen)
        found = run_passes(model.rows_after(text[:n_seen], n_rows)).logits
        np.testing.assert_array_equal(found, rows[n_seen - n_rows : n_seen])
        gaps.append(model.latest.gap)
    assert max(gaps) > 128  # more than one pass
    assert min(gaps) < 20


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("setting", SETTINGS)
def test_verify_is_the_target_model(
    open_pair: OpenPair, setting: str, sampling: SamplingConfig
) -> None:
    target, draft = open_pair()
    plain = generate(target, sampling).token_ids
    for max_run in (3, 16):
        config = SwitchConfig.parse(f"{setting},mode=verify,max_run={max_run}")
        target.truncate(0)
        result = generate(target, sampling, Switching(role_of(draft), config))
        assert result.token_ids == plain
        assert "draft" in result.origins


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("mode", ["trust", "repair"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_replay_gives_the_same_text(
    open_pair: OpenPair, setting: str, mode: str, sampling: SamplingConfig
) -> None:
    target, draft = open_pair()
    config = SwitchConfig.parse(f"{setting},mode={mode},rollback=3")
    result = generate(target, sampling, Switching(role_of(draft), config))
    assert 0 < result.switch["share_target"] < 1
    for session in (target, draft):
        session.truncate(0)
    policy = partial(ReplayPolicy.of, result.switch)
    again = Switching(role_of(draft), SwitchConfig(threshold=0.0), policy)
    replay = generate(target, sampling, again)
    assert replay.token_ids == result.token_ids
    assert replay.origins == result.origins


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_extreme_thresholds(open_pair: OpenPair, sampling: SamplingConfig) -> None:
    target, draft = open_pair()
    plain = [generate(session, sampling).token_ids for session in (target, draft)]
    assert plain[0] != plain[1]
    for threshold, expected in ((-1.0, plain[0]), (float("inf"), plain[1])):
        setting = SwitchConfig(threshold=threshold)
        assert generate(target, sampling, Switching(role_of(draft), setting)).token_ids == expected
