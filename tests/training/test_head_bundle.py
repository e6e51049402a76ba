"""Draft heads in bundles: the graph against torch, the text they leave as it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.manifest import read_manifest
from edgedec.runtime.config import GenerationConfig
from edgedec.training.heads.head_check import share_found

torch = pytest.importorskip("torch", reason="needs the extra train")

from edgedec.training.features.feature_file import (  # noqa: E402
    TextFeatures,
    held_out_of,
)
from edgedec.training.heads import train_head as heads  # noqa: E402

from .head_parts import (  # noqa: E402
    check_reload,
    check_text,
    graph_logits,
    put,
    torch_logits,
)

pytestmark = pytest.mark.slow


def test_the_graph_computes_what_torch_does(
    bundle: Path, head: heads.TrainedHead, texts: list[TextFeatures], tmp_path: Path
) -> None:
    """Float weights on both sides, of which the kernels round keys and values to float16.

    In a row or two that decides between keys that are alike, so medians are compared.
    """
    path = tmp_path / "float.edgedec"
    put(bundle, head, path, "keep")
    expected = torch_logits(bundle, head, texts[1], 3)
    found = graph_logits(path, texts[1])
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        first = max(step, 2) if step else 0
        stop = len(theirs) - 1 if step == 1 else len(theirs)
        spread = theirs[first:stop].std()
        errors = np.abs(ours[first:stop] - theirs[first:stop]).mean(axis=1)
        assert np.median(errors) < 5e-4 * spread, step


def test_features_of_the_same_token_are_not_those_of_the_one_before(
    whole: Path, bundle: Path, head: heads.TrainedHead, texts: list[TextFeatures]
) -> None:
    expected = torch_logits(bundle, head, texts[1], 1)[0]
    right, wrong = (
        np.abs(graph_logits(whole, texts[1], shift)[0] - expected).mean() for shift in (1, 0)
    )
    assert wrong > 5 * right


def test_the_bundles_head_finds_what_torch_does(
    bundle: Path, head: heads.TrainedHead, texts: list[TextFeatures], tmp_path: Path
) -> None:
    """With float weights; in one row or two keys are too much alike for float16 to tell."""
    manifest = put(bundle, head, tmp_path / "float.edgedec", "keep")
    right = [
        head.head_ids[torch_logits(bundle, head, text, 1)[0].argmax(-1)] == text.top_ids[:, 0]
        for text in held_out_of(texts)
    ]
    expected = np.concatenate(right)
    found = share_found(tmp_path / "float.edgedec", manifest, held_out_of(texts), 1)
    assert found == pytest.approx(expected.mean(), abs=2 / len(expected))
    assert found > 0.5


def test_the_bundle_shares_what_it_can(whole: Path, bundle: Path) -> None:
    manifest, before = read_manifest(whole), read_manifest(bundle)
    entry = manifest.head
    assert entry is not None
    assert manifest.target == before.target
    own = set(entry.files) - set(before.files)
    assert set(manifest.files) == set(before.files) | own
    for path in before.files:
        assert (whole / path).samefile(bundle / path)
    embedding = before.target.config.vocab_size * before.target.config.hidden_size
    assert sum(manifest.files[path].n_bytes for path in own) < 4 * embedding * 8


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("method", ["eagle", "auto", "eagle+lookup"])
def test_the_text_is_that_of_plain_decoding(whole: Path, method: str, temperature: float) -> None:
    check_text(whole, method, temperature)


def test_a_session_file_leaves_nothing_to_read_again(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_reload(whole, "eagle", tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("model", "0" * 32, "was trained for the model 000000000000, this one is"),
        ("hidden_layers", [0, 2], "needs hidden states of layer 0, the model's graph returns"),
        ("hidden_layers", [2], "reads 768 features, expected 512 of 1 layers"),
    ],
)
def test_a_head_of_something_else_is_refused(
    whole: Path, tmp_path: Path, key: str, value: Any, text: str
) -> None:
    broken = Path(shutil.copytree(whole, tmp_path / "broken.edgedec"))
    fields = json.loads((broken / "manifest.json").read_text())
    fields["head"][key] = value
    (broken / "manifest.json").write_text(json.dumps(fields))
    with pytest.raises(BundleError, match=text):
        edgedec.load(broken)


def test_a_bundle_without_a_head_says_so(bundle: Path) -> None:
    with edgedec.load(bundle) as engine, pytest.raises(ConfigError, match="train one with edgedec"):
        engine.generate("hello", GenerationConfig(method="eagle"))
