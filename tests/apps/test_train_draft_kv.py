"""`edgedec train kv --draft`, and drafting with its maps: a real model drafts for itself."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgedec
from edgedec.models.manifest import read_manifest

from .conftest import Cli

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "export"


def edited(bundle: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.unlink()  # the bundle may share its files with others
    path.write_text(json.dumps(manifest))


def with_itself(bundle: Path, folder: Path) -> Path:
    """Returns a bundle whose draft model is its target model once more."""
    pair = Path(shutil.copytree(bundle, folder / "pair.edgedec", copy_function=os.link))
    shutil.copytree(pair / "target", pair / "draft", copy_function=os.link)

    def add(manifest: dict[str, Any]) -> None:
        text = json.dumps(manifest["models"]["target"]).replace('"target/', '"draft/')
        manifest["models"]["draft"] = {**json.loads(text), "kind": "draft", "name": "itself"}
        for path in [path for path in manifest["files"] if path.startswith("target/")]:
            manifest["files"][path.replace("target/", "draft/", 1)] = manifest["files"][path]

    edited(pair, add)
    return pair


@pytest.fixture(scope="module")
def pair(smollm2_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_itself(smollm2_bundle, tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def trained(pair: Path) -> Path:
    from edgedec.apps.cli import main

    arguments = ("train", "kv", str(pair), "--corpus", str(CORPUS), "--draft")
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "--max-tokens", "3500"])
    assert not stopped.value.code
    return pair


def test_long_prompts_are_mapped_and_the_text_stays(cli: Cli, trained: Path) -> None:
    entry = read_manifest(trained).auxiliary["draft_kv_maps"]
    assert (entry.n_tokens, entry.corpus) == (3500, str(CORPUS))
    assert entry.unexplained < 0.01
    assert cli("inspect", trained, "--verify").exit_code == 0
    prompt = (ROOT / "models" / "config.py").read_text()[:2500]
    config = edgedec.GenerationConfig(max_new_tokens=24, method="draft")
    with edgedec.load(trained) as engine:
        plain = engine.generate(prompt, edgedec.GenerationConfig(max_new_tokens=24, method="plain"))
        drafted = engine.generate(prompt, config)
        assert drafted.token_ids == plain.token_ids
        # It has all of the text, however long: as its own draft model it is nearly always right.
        assert drafted.stats.n_passes < 10
    with edgedec.load(trained, edgedec.EngineOptions(draft=str(trained))) as engine:
        assert engine.draft is not None
        assert engine.draft.mapped is None  # of another bundle nothing is known


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("source", "0" * 32, "were fitted for the target model 000000000000, this one is"),
        ("model", "1" * 32, "were fitted for the draft model 111111111111, this one is"),
        ("kv_format", "int8", "write a int8 KV cache, the model's is float16"),
        ("kind", "kv_maps", "kind is 'kv_maps', expected draft_kv_maps"),
    ],
)
def test_maps_of_something_else_are_refused(
    trained: Path, tmp_path: Path, key: str, value: str, text: str
) -> None:
    bundle = Path(shutil.copytree(trained, tmp_path / "b.edgedec", copy_function=os.link))
    edited(bundle, lambda m: m["auxiliary"]["draft_kv_maps"].update({key: value}))
    with pytest.raises(edgedec.BundleError, match=text):
        edgedec.load(bundle)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--exit", 3), "--exit, --draft and --auxiliary are three kinds of maps: choose one"),
        (("--max-tokens", 900), "too few to fit maps from 1152 features: expected at least 2306"),
    ],
)
def test_what_cannot_be_fitted(cli: Cli, pair: Path, arguments: tuple[Any, ...], text: str) -> None:
    before = (pair / "manifest.json").read_text()
    assert text in cli("train", "kv", pair, "--corpus", CORPUS, "--draft", *arguments).error
    assert (pair / "manifest.json").read_text() == before


def test_a_bundle_without_a_draft_model(cli: Cli, smollm2_bundle: Path) -> None:
    asked = ("train", "kv", smollm2_bundle, "--corpus", CORPUS, "--draft")
    assert "this bundle has no draft model: export it with --draft" in cli(*asked).error
