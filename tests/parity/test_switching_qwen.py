"""Switching between two real models, where their files are here: the edges, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import edgedec
from edgedec import EngineOptions
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import read_manifest
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.decoding.switching.pair import Pair
from edgedec.runtime.decoding.switching.paired_model import PairedModel
from edgedec.runtime.decoding.switching.switching import Switching
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.token_tree import TokenTree

from ..runtime.decoding.switching.replay import ReplayPolicy
from ..runtime.draft_toys import generate

pytestmark = [pytest.mark.parity, pytest.mark.pair]

TARGET, DRAFT = (f"Qwen2.5-Coder-{size}-Instruct.Q4_K_M.gguf" for size in ("1.5B", "0.5B"))
PROMPT = "The lighthouse keeper had never spoken to anyone about the night when"
N_TOKENS = 48
CONTEXT = 192


@pytest.fixture(scope="module")
def bundles(
    find_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("qwen")
    found = {"target": find_model(TARGET), "draft": find_model(DRAFT)}
    for name, source in found.items():
        export(ExportConfig(source=str(source), destination=folder / name))
    return {name: folder / name for name in found}


@pytest.fixture(scope="module")
def engine(bundles: dict[str, Path]) -> Iterator[Engine]:
    options = EngineOptions(threads=2, context=CONTEXT, draft=bundles["draft"], prefix_cache_mb=0)
    with edgedec.load(bundles["target"], options) as engine:
        yield engine


@pytest.fixture(scope="module")
def plain(bundles: dict[str, Path]) -> dict[str, tuple[int, ...]]:
    """What each model says alone."""
    found = {}
    for name, bundle in bundles.items():
        with edgedec.load(bundle, EngineOptions(threads=2, context=CONTEXT)) as engine:
            found[name] = engine.generate(PROMPT, request(method="plain")).token_ids
    assert found["target"] != found["draft"]
    return found


def request(setting: str | None = None, method: str | None = None) -> GenerationConfig:
    switch = None if setting is None else SwitchConfig.parse(setting)
    return GenerationConfig(max_new_tokens=N_TOKENS, method=method, switch=switch, ignore_eos=True)


def switched(engine: Engine, setting: str) -> GenerationResult:
    engine.forget_prompts()
    return engine.generate(PROMPT, request(setting))


@pytest.mark.parametrize(
    ("setting", "whose"),
    [
        ("ead:threshold=inf", "draft"),
        ("ead:threshold=-1", "target"),
        ("ead:threshold=inf,mode=verify", "target"),
        ("ead:threshold=0.2,window=2,dwell=1,mode=verify", "target"),
        ("bild:fallback=0.9,mode=verify", "target"),
    ],
)
def test_whose_text_it_is(
    engine: Engine, plain: dict[str, tuple[int, ...]], setting: str, whose: str
) -> None:
    result = switched(engine, setting)
    assert result.token_ids == plain[whose]
    assert result.lossless == ("verify" in setting)


@pytest.mark.parametrize(
    "setting", ["ead:threshold=0.2,window=2,dwell=1", "bild:fallback=0.9,mode=repair"]
)
def test_shares_are_the_tags_and_the_log_gives_the_text(engine: Engine, setting: str) -> None:
    result = switched(engine, setting)
    reported, tags = result.switch, result.origins
    assert 0 < reported["share_target"] < 1
    assert reported["share_target"] == tags.count("target") / len(tags)
    assert reported["cost_paper"] == pytest.approx(
        reported["share_target"] + (1 - reported["share_target"]) * pair(engine).size_ratio
    )
    assert 0.3 < pair(engine).size_ratio < 0.45
    assert engine.draft is not None
    draft = engine.draft.open()
    replay = Switching(draft, SwitchConfig(threshold=0.0), partial(ReplayPolicy.of, reported))
    again = generate(
        engine.new_sequence(), engine.encode(PROMPT), request("ead:threshold=0"), replay
    )
    draft.close()
    assert (again.token_ids, again.origins) == (result.token_ids, tags)


def pair(engine: Engine) -> Pair:
    assert engine.draft is not None
    assert engine.draft.pair is not None
    return engine.draft.pair


def test_rows_after_catch_up_are_those_of_single_steps(
    engine: Engine, plain: dict[str, tuple[int, ...]]
) -> None:
    session, text = engine.new_sequence(), [*engine.encode(PROMPT), *plain["draft"]]
    rows = []
    for token in text:
        rows.append(session.forward(TokenTree.chain([token]), (0,)).logits[0].copy())
        session.commit((0,))
    session.truncate(3)
    model = PairedModel(session, 3)
    for end in (5, 6, 38, len(text)):
        found = run_passes(model.rows_after(text[:end], 2)).logits
        np.testing.assert_array_equal(found, rows[end - 2 : end])
    assert model.counts.n_caught_up > 30


def test_models_of_other_tokenizers_are_refused(
    bundles: dict[str, Path], smollm2_bundle: Path
) -> None:
    options = EngineOptions(threads=2, context=CONTEXT, draft=smollm2_bundle)
    with edgedec.load(bundles["target"], options) as engine:
        with pytest.raises(ConfigError) as caught:
            engine.generate(PROMPT, request("ead:threshold=1"))
        for bundle in (bundles["target"], smollm2_bundle):
            assert read_manifest(bundle).files["tokenizer.json"].sha256[:16] in str(caught.value)
