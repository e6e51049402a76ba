"""`edgedec train kv --draft`: maps between the two models of a bundle."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import edgedec
from edgedec.export.config import DraftModelConfig, ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.manifest import read_manifest
from edgedec.training.kv_maps import kv_progress
from edgedec.training.kv_maps.kv_job import KVJob, train_draft_maps

from ..export.conftest import make_gguf  # noqa: F401 (a fixture)
from .conftest import Cli

pytestmark = pytest.mark.e2e

PROMPT = "def hello(world):\n    return world + 12\n" * 5
CONTEXT = 512
WORDS = "def hello world return for in range if not x y 12 ( ) : = +"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts that nobody edits: how good maps are depends on them."""
    folder, rng = tmp_path_factory.mktemp("corpus"), random.Random(0)
    words = [*WORDS.split(), "\n", ""]
    for i in range(24):
        (folder / f"{i}.py").write_text(" ".join(rng.choices(words, k=400)))
    return folder


@pytest.fixture(scope="module")
def pair(make_gguf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """A tiny model that drafts for itself."""
    bundle = tmp_path_factory.mktemp("pair") / "pair.edgedec"
    model = str(make_gguf("llama", type_name="Q8_0"))
    draft = DraftModelConfig(source=model, quantization="keep")
    export(ExportConfig(model, bundle, context=CONTEXT, draft=draft))
    return bundle


@pytest.fixture(scope="module")
def trained(pair: Path, corpus: Path) -> Path:
    """The same with maps to the draft model."""
    from edgedec.apps.cli import main

    command = ["train", "kv", str(pair), "--draft", "--max-tokens", "3000"]
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--corpus", str(corpus)])
    assert not stopped.value.code
    return pair


def test_the_maps_are_in_the_bundle(cli: Cli, trained: Path, corpus: Path) -> None:
    auxiliary = read_manifest(trained).auxiliary
    entry = auxiliary.pop("draft_kv_maps")
    assert not auxiliary
    assert (entry.n_tokens, entry.corpus) == (3000, str(corpus))
    assert entry.unexplained <= entry.held_out < 0.05  # a model's own rows, but for the ridge
    assert {f"auxiliary/{p.name}" for p in (trained / "auxiliary").iterdir()} == {*entry.files}
    assert cli("inspect", trained, "--verify").exit_code == 0


def test_the_draft_model_has_what_it_did_not_read(trained: Path) -> None:
    with edgedec.load(trained) as engine:
        plain, drafted = (
            engine.generate(PROMPT, edgedec.GenerationConfig(max_new_tokens=20, method=method))
            for method in ("plain", "draft")
        )
        assert drafted.token_ids == plain.token_ids
        # As its own draft model it is nearly always right, if it knows the prompt.
        assert drafted.stats.n_passes < 10
        assert engine.draft is not None
        role = engine.draft.open()
        assert role.mapped is not None
        role.close()
    with edgedec.load(trained, edgedec.EngineOptions(draft=str(trained))) as engine:
        assert engine.draft is not None
        assert engine.draft.mapped is None  # of another bundle nothing is known


@pytest.mark.robustness
def test_a_killed_fit_goes_on_where_it_ended(
    trained: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_progress, "_SAVE_S", 0.0)
    monkeypatch.setattr(kv_progress, "_MIN_READING", 0)
    bundle = Path(shutil.copytree(trained, tmp_path / "b.edgedec"))
    job = KVJob(bundle, (corpus,), 3000, None)
    whole = read_manifest(bundle).auxiliary["draft_kv_maps"]

    def killed(_: str, n_tokens: int, n_wanted: int) -> None:
        if n_tokens > n_wanted // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_draft_maps(job, killed, lambda: False)
    assert read_manifest(bundle).auxiliary["draft_kv_maps"] == whole
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == [".b.edgedec.fit.npz", "b.edgedec"]
    counts: list[int] = []
    report = train_draft_maps(job, lambda _, n, __: counts.append(n), lambda: False)
    found = report.entry
    assert counts[0] > 1500  # what was read is not read again
    assert (bundle / found.weights).read_bytes() == (trained / whole.weights).read_bytes()
    assert dataclasses.replace(found, graph="", weights="") == dataclasses.replace(
        whole, graph="", weights=""
    )
    assert [path.name for path in tmp_path.iterdir()] == ["b.edgedec"]


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("source", "0" * 32, "for the target model 000000000000, this one is"),
        ("model", "1" * 32, "for the draft model 111111111111, this one is"),
        ("kv_format", "int8", "write a int8 KV cache, the model's is float16"),
        ("kind", "kv_maps", "kind is 'kv_maps', expected draft_kv_maps"),
    ],
)
def test_maps_of_something_else_are_refused(
    trained: Path, tmp_path: Path, key: str, value: str, text: str
) -> None:
    bundle = Path(shutil.copytree(trained, tmp_path / "b.edgedec", copy_function=os.link))
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["auxiliary"]["draft_kv_maps"][key] = value
    path.unlink()  # it is the other bundle's, too
    path.write_text(json.dumps(manifest))
    with pytest.raises(edgedec.BundleError, match=text):
        edgedec.load(bundle)


@pytest.mark.robustness
def test_maps_of_an_unknown_kind_are_refused(trained: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(trained, tmp_path / "b.edgedec", copy_function=os.link))
    path = bundle / "manifest.json"
    text = path.read_text().replace('"draft_kv_maps": {', '"other_kv_maps": {')
    path.unlink()
    path.write_text(text)
    with pytest.raises(edgedec.BundleError, match="other_kv_maps is unknown, expected one of"):
        edgedec.load(bundle)


def test_what_cannot_be_fitted(cli: Cli, pair: Path, corpus: Path) -> None:
    before = (pair / "manifest.json").read_text()
    asked = ("train", "kv", pair, "--corpus", corpus, "--draft")
    assert "too few to fit maps from" in cli(*asked, "--max-tokens", 60).error
    both = cli(*asked, "--exit", 1).error
    assert "--exit and --draft are two kinds of maps: choose one" in both
    assert (pair / "manifest.json").read_text() == before


def test_a_bundle_without_a_draft_model(cli: Cli, smollm2_bundle: Path, corpus: Path) -> None:
    asked = ("train", "kv", smollm2_bundle, "--corpus", corpus, "--draft")
    assert "this bundle has no draft model: export it with --draft" in cli(*asked).error
