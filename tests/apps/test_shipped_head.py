"""The draft heads of the distribution in `heads/`, at work in the models that they are of."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import edgedec
from edgedec.export.checkpoints.catalogue import CATALOGUE
from edgedec.export.heads.shipped_heads import shipped_heads
from edgedec.models.draft_heads import HYDRA
from edgedec.models.manifest import read_manifest

from .conftest import Cli

pytestmark = pytest.mark.e2e

NAME = "smollm2-135m-instruct"
PROMPT = "Write a Python function that returns the n-th Fibonacci number."


def test_it_is_small_and_at_work(cli: Cli, tmp_path: Path) -> None:
    assert shipped_heads()[NAME].path.stat().st_size < 3_000_000
    bundle = tmp_path / "named.edgedec"
    done = cli("export", NAME, "-o", bundle)
    assert done.exit_code == 0
    assert f"with the draft head {NAME} of edgedec-heads" in done.err
    head = read_manifest(bundle).head
    assert head is not None
    assert (head.kind, head.head.config.n_layers) == (HYDRA, 2)
    assert head.joined is not None
    with edgedec.load(bundle) as engine:
        asked = [{"role": "user", "content": PROMPT}]
        request = edgedec.GenerationConfig(max_new_tokens=64, method="plain")
        plain = engine.generate(asked, request)
        every_round = edgedec.SpeculationConfig(draft_len=7)
        drafting = dataclasses.replace(request, method="mtp", speculation=every_round)
        drafted = engine.generate(asked, drafting)
    assert drafted.token_ids == plain.token_ids
    # Of the model's own answers it finds every second token.
    assert drafted.stats.n_passes < 45


def test_every_listed_head_is_there_and_belongs_to_the_catalogue() -> None:
    heads = shipped_heads()
    assert set(heads) <= set(CATALOGUE)
    for name, head in heads.items():
        assert head.read().path.stem == name
    folder = heads[NAME].path.parent
    assert {path.name for path in folder.glob("*.safetensors")} == {
        head.path.name for head in heads.values()
    }


def test_it_may_be_left_out(cli: Cli, tmp_path: Path) -> None:
    bundle = tmp_path / "bare.edgedec"
    assert cli("export", NAME, "-o", bundle, "--no-head").exit_code == 0
    assert read_manifest(bundle).head is None
    refused = cli("run", bundle, "Hi", "--method", "mtp", "-n", 4)
    assert "or light heads in the model's own graph: train these with" in refused.error
