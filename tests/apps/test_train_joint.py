"""`edgedec train joint`: maps, and the model that they read, trained by gradients."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.export.config import DraftModelConfig, ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.kv_maps import AUXILIARY_KV_MAPS, KV_MAPS
from edgedec.models.manifest import BundleManifest, read_manifest

from ..export.conftest import make_gguf, tiny_weights  # noqa: F401 (a fixture)
from .conftest import Cli

torch = pytest.importorskip("torch", reason="needs the extra train")

from edgedec.labs.joint import train_maps as joint  # noqa: E402
from edgedec.labs.joint.stored_maps import read_maps  # noqa: E402
from edgedec.labs.joint.torch_maps import KeepingOps, MappedModel, PredictingOps  # noqa: E402
from edgedec.training.heads.torch_head import TorchWeights  # noqa: E402
from edgedec.training.loop import TrainingPlan  # noqa: E402

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "export"
PROMPT = "def hello(world):\n    return world + 12\n" * 5
KINDS = [KV_MAPS, AUXILIARY_KV_MAPS]
ASKED = ("--max-tokens", 2500, "--epochs", 2, "--learning-rate", 3e-3, "--seed", 1)


@pytest.fixture(scope="module")
def bundles(make_gguf: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:  # noqa: F811
    """A tiny model with maps from its first layer, and one that another reads for."""
    from edgedec.apps.cli import main

    rng = np.random.default_rng(5)
    worse = {
        name: (w + 0.2 * w.std() * rng.standard_normal(w.shape)).astype(np.float32)
        for name, w in tiny_weights(has_bias=False).items()
        if w.ndim == 2 and name.startswith("blk")
    }
    model = str(make_gguf("llama", type_name="Q8_0"))
    draft = DraftModelConfig(str(make_gguf("llama", type_name="Q8_0", weights=worse)), "keep")
    found, folder = {}, tmp_path_factory.mktemp("joint")
    for kind, option in zip(KINDS, ("--exit=1", "--auxiliary"), strict=True):
        bundle, found[kind] = folder / f"fitted_{kind}.edgedec", folder / f"{kind}.edgedec"
        export(ExportConfig(model, bundle, context=512, draft=draft))
        asked = ("train", "kv", str(bundle), "--corpus", str(CORPUS), "--max-tokens", "3000")
        for more in (option, "--draft"):
            with pytest.raises(SystemExit) as stopped:
                main([*asked, more])
            assert not stopped.value.code
        spoil(bundle, kind, found[kind], rng)
    return found


def spoil(bundle: Path, kind: str, out: Path, rng: np.random.Generator) -> None:
    """Writes a bundle whose maps are worse: those of so small a model are hard to improve."""
    manifest = read_manifest(bundle)
    maps, scales = read_maps(bundle, manifest.auxiliary[kind], manifest.target.config.hidden_size)
    worse = tuple(
        dataclasses.replace(
            m, weights=m.weights + 0.3 * m.weights.std() * rng.standard_normal(
                m.weights.shape, np.float32
            )
        )
        for m in maps
    )  # fmt: skip
    score = joint.Score(0.0, 0.0, 0.0, 0.0, 0.5)
    spoilt = joint.TrainedMaps(worse, scales, {}, 0, score, score, True)
    joint.put_maps(bundle, manifest, spoilt, "noise", out, False)


@pytest.mark.parametrize("kind", KINDS)
def test_training_lowers_what_is_lost_on_other_texts(
    cli: Cli, bundles: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    bundle, out = bundles[kind], tmp_path / "new" / "out.edgedec"
    done = cli("train", "joint", bundle, "-o", out, "--corpus", CORPUS, *ASKED, "--json")
    assert done.exit_code == 0, done.err
    before, after = done.json["before"], done.json["after"]
    assert after["rows"] < before["rows"]
    assert after["missed"] < before["missed"]
    lost = ("target", "reader", "rows")
    assert sum(after[name] for name in lost) < sum(before[name] for name in lost)
    assert (before["reader"] > after["reader"] > 0) == (kind == AUXILIARY_KV_MAPS)
    old, new = read_manifest(bundle), read_manifest(out)
    is_read = kind == AUXILIARY_KV_MAPS
    assert sorted(new.auxiliary) == ([kind] if is_read else ["draft_kv_maps", kind])
    assert new.auxiliary[kind].held_out == pytest.approx(after["missed"], abs=1e-4)
    changed = {path for path in new.files if new.files[path] != old.files.get(path)}
    expected = {*new.auxiliary[kind].files, *(["draft/weights.bin"] if is_read else [])}
    assert changed == expected - {new.auxiliary[kind].graph}  # the maps are as many as before
    assert list(out.parent.iterdir()) == [out]
    assert cli("inspect", out, "--verify").exit_code == 0
    asked = ("run", out, PROMPT, "--raw", "-n", 12, "--method", "plain", "--json",
             "--prefix-disk", 0)  # fmt: skip
    exact, found = (cli(*asked, "--prefill", mode).json for mode in ("exact", "progressive"))
    assert found["token_ids"] == exact["token_ids"]
    assert found["stats"]["n_provisional"] > 0
    again = cli("train", "joint", bundle, "-o", out, "--corpus", CORPUS, *ASKED)
    assert "--force" in again.error


def parts(bundle: Path) -> tuple[BundleManifest, list[list[int]]]:
    with edgedec.load(bundle, edgedec.EngineOptions(draft=False)) as engine:
        tokens = engine.tokenizer.encode((ROOT / "training" / "kv_maps" / "kv_maps.py").read_text())
    return read_manifest(bundle), [tokens[i : i + 96] for i in range(0, 96 * 10, 96)]


def trained(
    bundle: Path, file: Path, report: Any = lambda *_: None, **changed: Any
) -> joint.TrainedMaps:
    manifest, texts = parts(bundle)
    plan = TrainingPlan(**{"n_epochs": 2, "learning_rate": 1e-3, "batch": 2, "seed": 3, **changed})
    return joint.train_maps(bundle, manifest, texts, plan, file, report, lambda: False)


def noting(steps: list[int]) -> Any:
    """Returns the report of a training, which notes its steps."""

    def report(phase: str, done: int, total: int, detail: str = "") -> None:
        if phase == "train":
            steps.append(done)
            # A loss in nats, where heads have a share of tokens.
            assert re.fullmatch(r"loss \d+\.\d\d(, held out \d+\.\d\d)?", detail), detail

    return report


@pytest.mark.robustness
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_training_goes_on_where_it_ended(
    bundles: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    whole = trained(bundles[kind], tmp_path / "whole.npz")

    def killed(_: str, step: int, *__: object) -> None:
        if step == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(bundles[kind], tmp_path / "a.npz", killed)
    steps: list[int] = []
    again = trained(bundles[kind], tmp_path / "a.npz", noting(steps))
    assert steps[0] == 5  # the first epoch was kept
    assert (again.before, again.after) == (whole.before, whole.after)
    for one, two in zip(whole.maps, again.maps, strict=True):
        assert np.array_equal(one.weights, two.weights)
        assert np.array_equal(one.bias, two.bias)
    assert whole.reader.keys() == again.reader.keys()
    assert all(np.array_equal(whole.reader[name], again.reader[name]) for name in whole.reader)


def test_time_that_ends_within_an_epoch_is_not_lost(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    manifest, texts = parts(bundles[KV_MAPS])
    plan = TrainingPlan(1, learning_rate=3e-3, batch=1, seed=3)
    steps: list[int] = []
    found = joint.train_maps(
        bundles[KV_MAPS], manifest, texts, plan, tmp_path / "a.npz",
        noting(steps), lambda: len(steps) == 6,
    )  # fmt: skip
    assert steps == [1, 2, 3, 4, 5, 6]
    assert found.after.total < found.before.total


@pytest.mark.robustness
def test_a_loss_that_is_no_number_ends_the_training(
    bundles: dict[str, Path], tmp_path: Path
) -> None:
    found = trained(bundles[KV_MAPS], tmp_path / "a.npz", learning_rate=1e30)
    assert not found.is_finite
    assert found.after == found.before
    stored, _ = read_maps(
        bundles[KV_MAPS],
        read_manifest(bundles[KV_MAPS]).auxiliary[KV_MAPS],
        read_manifest(bundles[KV_MAPS]).target.config.hidden_size,
    )
    for one, two in zip(found.maps, stored, strict=True):
        assert np.array_equal(one.weights, two.weights)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_predicted_exactly_change_nothing(
    bundles: dict[str, Path], kind: str
) -> None:
    manifest, texts = parts(bundles[kind])
    maps, scales = read_maps(
        bundles[kind], manifest.auxiliary[kind], manifest.target.config.hidden_size
    )
    entries = manifest.models["target"], manifest.models["draft"]
    weights, of_reader = (joint._weights(bundles[kind], entry) for entry in entries)
    reader = None
    if kind == AUXILIARY_KV_MAPS:
        reader = TorchWeights(entries[1].config, of_reader, 96)
    model = MappedModel(entries[0].config, weights, 96, maps, scales, reader)
    tokens = torch.tensor(texts[:2])
    with torch.no_grad():
        exact = KeepingOps(model, tokens)
        wanted = exact.logits()
        ops = PredictingOps(model, tokens, exact.kept, dict(exact.kept))
        if reader is None:
            model.predicted = lambda features: dict(exact.kept)  # type: ignore[method-assign]
        assert (ops.logits() - wanted).abs().max() < 1e-5 * wanted.abs().max()
        losses = model(tokens, torch.ones_like(tokens))
    assert (losses.rows == 0) == (reader is None)


def test_what_cannot_be_trained(
    cli: Cli, bundles: dict[str, Path], smollm2_bundle: Path, tmp_path: Path
) -> None:
    asked = ("-o", tmp_path / "out.edgedec", "--corpus", CORPUS)
    assert "has no KV maps to begin with" in cli("train", "joint", smollm2_bundle, *asked).error
    few = cli("train", "joint", bundles[KV_MAPS], *asked, "--max-tokens", 20).error
    assert "the corpus has 0 texts that are long enough, expected at least 2" in few
    manifest = read_manifest(bundles[AUXILIARY_KV_MAPS])
    draft = manifest.models["draft"]
    formats = dict(draft.tensor_formats, **{"layers.0.mlp.up_proj.weight": "q4_k"})
    with pytest.raises(edgedec.ConfigError, match=r"has layers.0.mlp.up_proj.weight as q4_k"):
        joint._check_writable(dataclasses.replace(draft, tensor_formats=formats))
    assert list(tmp_path.iterdir()) == []
