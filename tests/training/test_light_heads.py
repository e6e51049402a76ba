"""Light heads (`hydra`, `medusa`): the graph against torch, what they read, the text they leave."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.models.draft_heads import HYDRA, LIGHT_HEADS, MEDUSA, OUTPUT, light_gates
from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.manifest import read_manifest
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.training.heads.head_check import share_found

torch = pytest.importorskip("torch", reason="needs the extra train")

from edgedec.training.features.feature_file import TextFeatures, held_out_of  # noqa: E402
from edgedec.training.heads import train_head as heads  # noqa: E402

from .head_parts import (  # noqa: E402
    CONTEXT,
    plan_of,
    put,
    torch_logits,
    trained,
)

pytestmark = pytest.mark.slow

N_HEADS = 3


@pytest.fixture(scope="module", params=LIGHT_HEADS)
def light(
    request: pytest.FixtureRequest,
    bundle: Path,
    texts: list[TextFeatures],
    tmp_path_factory: pytest.TempPathFactory,
) -> heads.TrainedHead:
    plan = plan_of(request.param, n_epochs=20, learning_rate=1e-2, batch=24)
    return trained(bundle, tmp_path_factory.mktemp("features"), texts, plan)


@pytest.fixture(scope="module")
def lit(bundle: Path, light: heads.TrainedHead, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle with light heads."""
    path = tmp_path_factory.mktemp("light") / "tiny.edgedec"
    put(bundle, light, path, "int8")
    return path


def graph_logits(bundle: Path, text: TextFeatures, head: int, shift: int = 1) -> np.ndarray:
    """Returns what the graph says of light head ``head`` [T, N], states ``shift`` tokens back."""
    entry = read_manifest(bundle).head
    assert entry is not None
    size, n, width = (
        entry.head.config.hidden_size,
        len(text.tokens),
        entry.head.contract.can.features,
    )
    model = open_model(bundle, entry.head, 1)
    sequence = TokenSequence(model, CONTEXT)
    features = np.zeros((n, width), np.float32)
    back = head + shift
    features[back:, :size] = text.hidden[: n - back, -size:].astype(np.float32)
    chain = TokenTree.chain(text.tokens.tolist())
    gates = light_gates(N_HEADS, head)
    if entry.kind == HYDRA:
        asked = Pass(sequence, chain, (), (OUTPUT,), layer_gates=gates, features=features)
        tokens = sequence.run(asked).hidden[OUTPUT].copy()
        for i in range(head):  # the tokens between
            behind = head - i
            features[behind:, (i + 1) * size : (i + 2) * size] = tokens[: n - behind]
    asked = Pass(sequence, chain, range(n), layer_gates=gates, features=features)
    logits = sequence.run(asked).logits.copy()
    release_model(model)
    return logits


def test_the_graph_computes_what_torch_does(
    bundle: Path, light: heads.TrainedHead, texts: list[TextFeatures], tmp_path: Path
) -> None:
    """Float weights on both sides."""
    path = tmp_path / "float.edgedec"
    put(bundle, light, path, "keep")
    expected = torch_logits(bundle, light, texts[1], N_HEADS)
    for head, theirs in enumerate(expected):
        same, swapped = (
            np.abs(graph_logits(path, texts[1], head, shift) - theirs)[N_HEADS:].mean()
            for shift in (1, 0)
        )
        assert same < 1e-4 * theirs.std(), head
        assert swapped > 1000 * same, head


@pytest.mark.parametrize("n_tokens", [2, 3, 6])
def test_pieces_too_short_for_the_last_heads_teach_the_others(
    bundle: Path, texts: list[TextFeatures], tmp_path: Path, n_tokens: int
) -> None:
    """Batches of nothing else, and of tokens none of which the heads can name."""
    short = [text.piece(0, n_tokens) for text in texts]
    short[0] = dataclasses.replace(short[0], top_ids=np.full_like(short[0].top_ids, 299))
    plan = plan_of(HYDRA, n_epochs=2, batch=1)
    head = trained(bundle, tmp_path, short, dataclasses.replace(plan, n_logits=4))
    assert head.trained.is_finite
    assert len(head.trained.measured.by_depth) == N_HEADS


def test_many_light_heads_learn(bundle: Path, texts: list[TextFeatures], tmp_path: Path) -> None:
    head = trained(bundle, tmp_path, texts, plan_of(HYDRA, n_steps=10, n_epochs=1, batch=8))
    assert head.trained.is_finite
    assert head.config.n_layers == 10


def test_they_learn_and_the_bundle_holds_what_they_learned(
    lit: Path, light: heads.TrainedHead, texts: list[TextFeatures]
) -> None:
    manifest = read_manifest(lit)
    found = share_found(lit, manifest, held_out_of(texts), 1)
    assert manifest.head is not None
    assert manifest.head.hidden_layers == (2,)
    assert found == pytest.approx(manifest.head.held_out[0], abs=0.05)
    assert min(manifest.head.held_out) > 0.5


def test_only_hydra_looks_at_tokens(light: heads.TrainedHead, lit: Path) -> None:
    contract = read_manifest(lit).head.head.contract  # type: ignore[union-attr]
    size = light.config.hidden_size
    assert contract.can.features == {HYDRA: N_HEADS * size, MEDUSA: size}[light.kind]
    own = read_manifest(lit).head.head.files  # type: ignore[union-attr]
    shared = set(read_manifest(lit).target.weights) & set(own)
    assert bool(shared) == (light.kind == HYDRA)  # the embedding


def test_heads_are_continued(
    lit: Path, light: heads.TrainedHead, texts: list[TextFeatures], tmp_path: Path
) -> None:
    plan = dataclasses.replace(plan_of(light.kind, n_epochs=1), is_continued=True)
    untouched = trained(lit, tmp_path, texts, plan, 0)
    for name, values in untouched.weights.items():
        step = np.abs(values).max() / 127
        np.testing.assert_allclose(values, light.weights[name], atol=step, err_msg=name)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("model", "0" * 32, "was trained for the model 000000000000, this one is"),
        ("kind", "eagle", "features, expected 512 of 1 layers"),
        ("hidden_layers", [0], "needs hidden states of layer 0, the model's graph returns"),
        ("hidden_layers", [], "light heads read 0 layers, expected one"),
        ("hidden_layers", [1, 2], "light heads read 2 layers, expected one"),
    ],
)
def test_heads_of_something_else_are_refused(
    lit: Path, tmp_path: Path, key: str, value: Any, text: str
) -> None:
    broken = Path(shutil.copytree(lit, tmp_path / "broken.edgedec"))
    fields = json.loads((broken / "manifest.json").read_text())
    fields["head"][key] = value
    (broken / "manifest.json").write_text(json.dumps(fields))
    with pytest.raises(BundleError, match=text):
        edgedec.load(broken)


@pytest.mark.parametrize("name", ["target", "head"])
def test_matrices_without_a_format_are_refused(lit: Path, tmp_path: Path, name: str) -> None:
    broken = Path(shutil.copytree(lit, tmp_path / "broken.edgedec"))
    fields = json.loads((broken / "manifest.json").read_text())
    model = fields["head"]["head"] if name == "head" else fields["models"][name]
    del model["tensor_formats"]["layers.1.mlp.gate_proj.weight"]
    (broken / "manifest.json").write_text(json.dumps(fields))
    with pytest.raises(BundleError, match=r"do not name layers\.1\.mlp\.gate_proj\.weight, which"):
        edgedec.load(broken)


def test_they_draft_in_the_models_own_graph_alone(lit: Path, light: heads.TrainedHead) -> None:
    with edgedec.load(lit) as engine:
        for kind, said in ((light.kind, "unknown method"), ("eagle", "needs a draft head")):
            with pytest.raises(ConfigError, match=said):
                engine.generate("hello", GenerationConfig(method=kind))
