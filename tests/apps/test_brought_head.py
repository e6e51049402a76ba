"""The draft head that edgedec brings for the model of its catalogue."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import edgedec
from edgedec.export.checkpoints.catalogue import brought_head
from edgedec.models.draft_heads import HYDRA
from edgedec.models.manifest import read_manifest

from .conftest import Cli

pytestmark = pytest.mark.e2e

NAME = "smollm2-135m-instruct"
PROMPT = "Write a Python function that returns the n-th Fibonacci number."


def test_it_is_small_and_at_work(cli: Cli, tmp_path: Path) -> None:
    file = brought_head(NAME)
    assert file is not None
    assert file.stat().st_size < 3_000_000
    bundle = tmp_path / "named.edgedec"
    assert cli("export", NAME, "-o", bundle).exit_code == 0
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


def test_it_may_be_left_out(cli: Cli, tmp_path: Path) -> None:
    bundle = tmp_path / "bare.edgedec"
    assert cli("export", NAME, "-o", bundle, "--no-head").exit_code == 0
    assert read_manifest(bundle).head is None
    refused = cli("run", bundle, "Hi", "--method", "mtp", "-n", 4)
    assert "or light heads in the model's own graph: train these with" in refused.error
