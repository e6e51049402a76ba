"""What training a draft head keeps, when it ends and what it ends with."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from edgedec.models.errors import ConfigError
from edgedec.models.manifest import read_manifest

torch = pytest.importorskip("torch", reason="needs the extra train")

from edgedec.training.batches import shuffled_batches  # noqa: E402
from edgedec.training.features.feature_file import (  # noqa: E402
    FeatureFile,
    TextFeatures,
)
from edgedec.training.heads import train_head as heads  # noqa: E402
from edgedec.training.loop import TrainingPlan, TrainingTexts  # noqa: E402

from .head_parts import (  # noqa: E402
    LAYERS,
    feature_file,
    graph_logits,
    plan_of,
    put,
    torch_logits,
    trained,
)

pytestmark = pytest.mark.slow


def test_training_learns(
    bundle: Path, texts: list[TextFeatures], head: heads.TrainedHead, tmp_path: Path
) -> None:
    reported: list[str] = []
    file = feature_file(tmp_path, texts)
    heads.train_head(
        bundle,
        read_manifest(bundle),
        file,
        len(LAYERS),
        plan_of(),
        lambda phase, done, total, detail="": reported.append(detail),
    )
    losses = [float(detail.split()[1].rstrip(",")) for detail in reported]
    assert ", held out " in reported[-1]
    assert head.trained.measured.by_depth[0] > 0.5
    assert losses[-1] < 0.7 * losses[0]
    measured = head.trained.measured
    assert len(measured.by_depth) == 3
    assert set(measured.by_kind) == {".b"}
    assert 0 < measured.covered <= 1


def test_a_single_step_teaches_something(
    bundle: Path, texts: list[TextFeatures], tmp_path: Path
) -> None:
    plan = plan_of(n_epochs=1, batch=len(texts))
    untouched = trained(bundle, tmp_path / "0", texts, plan, 0)
    after = trained(bundle, tmp_path / "1", texts, plan)
    assert any((after.weights[name] != w).any() for name, w in untouched.weights.items())


def test_quantising_costs_little(
    whole: Path, bundle: Path, head: heads.TrainedHead, texts: list[TextFeatures]
) -> None:
    expected = torch_logits(bundle, head, texts[1], 1)[0]
    error = np.abs(graph_logits(whole, texts[1])[0] - expected).mean()
    assert 0 < error < 0.1 * expected.std()


def start_training(bundle: Path, folder: Path, *more: str) -> subprocess.Popen[str]:
    """Returns the command at work on the source of these tests."""
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for source in Path(__file__).parent.glob("*.py"):
        shutil.copy(source, corpus)
    asked = ["--corpus", str(corpus), "--max-tokens", "3000", "--self", "400"]
    return train(bundle, folder, *asked, *more)


def train(bundle: Path, folder: Path, *more: str) -> subprocess.Popen[str]:
    """Returns the command at work, in a process of its own."""
    asked = ["train", "head", str(bundle), "-o", str(folder / "new.edgedec")]
    options = ["--vocabulary", "64", "--threads", "1", "--json", *more]
    program = "from edgedec.apps.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", program, *asked, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def test_ctrl_c_keeps_the_best_and_a_kill_what_was_read(bundle: Path, tmp_path: Path) -> None:
    work = tmp_path / ".new.edgedec.features"
    killed = start_training(bundle, tmp_path, "--epochs", "100000")
    while not (work / "eagle.npz").exists():  # written after an epoch
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    n_read = (work / "tokens.bin").stat().st_size // 4
    assert n_read >= 1500
    assert not (tmp_path / "new.edgedec").exists()
    again = start_training(bundle, tmp_path, "--epochs", "100000")
    before = (work / "eagle.npz").stat().st_mtime_ns
    while (work / "eagle.npz").stat().st_mtime_ns == before:
        assert again.poll() is None
        time.sleep(0.05)
    again.send_signal(signal.SIGINT)
    out, _ = again.communicate(timeout=60)
    assert again.returncode == 130
    report = json.loads(out)
    assert (work / "tokens.bin").stat().st_size // 4 == n_read
    manifest = read_manifest(tmp_path / "new.edgedec")
    assert manifest.head is not None
    assert report["held_out"] == list(manifest.head.held_out)
    assert report["n_skipped_files"] == 0
    assert {".py"} <= report["by_kind"].keys() <= {".py", "self"}  # of texts held out
    kinds = json.loads((work / "texts.json").read_text())["kinds"]
    assert sorted(set(kinds)) == [".py", "self"]


def test_a_head_learns_from_answers_alone(bundle: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "asked.jsonl"
    prompts.write_text('{"prompt": "Why?"}\n{"prompt": "What is the name of this?"}\n')
    asked = ["--prompts", str(prompts), "--self", "1000", "--epochs", "1", "--max-tokens", "1000"]
    out, error = train(bundle, tmp_path, *asked).communicate(timeout=120)
    assert json.loads(out)["by_kind"].keys() == {"self"}, error


def test_prompts_need_to_be_answered(bundle: Path, tmp_path: Path) -> None:
    refused = train(bundle, tmp_path, "--prompts", str(tmp_path / "asked.jsonl"))
    assert "say how much, --self" in refused.communicate(timeout=60)[1]
    refused = train(bundle, tmp_path)
    assert "there is nothing to learn from" in refused.communicate(timeout=60)[1]


def test_a_killed_training_goes_on_to_the_same_head(
    bundle: Path, head: heads.TrainedHead, texts: list[TextFeatures], tmp_path: Path
) -> None:
    for most in (3, 4, 10**9):  # in an epoch, at the end of one, to the end
        again = trained(bundle, tmp_path, texts, plan_of(), most)
    assert again.trained.measured == head.trained.measured
    for name, values in head.weights.items():
        np.testing.assert_array_equal(again.weights[name], values, err_msg=name)


def test_another_training_begins_anew(
    bundle: Path, head: heads.TrainedHead, texts: list[TextFeatures], tmp_path: Path
) -> None:
    trained(bundle, tmp_path, texts, plan_of(), 3)
    other = trained(bundle, tmp_path, texts, plan_of(seed=1))
    assert any((other.weights[name] != values).any() for name, values in head.weights.items())


def test_what_is_stopped_at_once_is_a_head(
    bundle: Path, texts: list[TextFeatures], tmp_path: Path
) -> None:
    untrained = trained(bundle, tmp_path, texts, plan_of(), 0)
    assert untrained.trained.is_finite
    assert put(bundle, untrained, tmp_path / "new.edgedec", "int4").head is not None


def test_a_loss_that_is_no_number_keeps_the_best(
    bundle: Path, texts: list[TextFeatures], tmp_path: Path
) -> None:
    sane = trained(bundle, tmp_path / "sane", texts, plan_of(n_epochs=1))
    broken = [dataclasses.replace(text) for text in texts]
    trained(bundle, tmp_path / "broken", broken, plan_of(), 4)  # an epoch, measured and kept
    hidden = tmp_path / "broken" / "hidden.bin"
    hidden.write_bytes(b"\xff" * hidden.stat().st_size)  # NaN, every one
    found = trained(bundle, tmp_path / "broken", broken, plan_of())
    assert not found.trained.is_finite
    assert all(np.isfinite(values).all() for values in found.weights.values())
    assert sane.trained.is_finite
    with pytest.raises(ConfigError, match="loss of the first epoch is NaN or infinite"):
        trained(bundle, tmp_path / "broken", broken, plan_of(seed=3))


def test_a_reading_that_was_killed_leaves_whole_texts(
    texts: list[TextFeatures], tmp_path: Path
) -> None:
    file = feature_file(tmp_path, texts[:3])
    with (tmp_path / "hidden.bin").open("ab") as torn:
        torn.write(b"half a text")
    again = feature_file(tmp_path, texts)
    assert again.lengths == [len(text.tokens) for text in texts]
    for ours, theirs in zip(again.texts(), texts, strict=True):
        for field in dataclasses.fields(TextFeatures):
            assert np.array_equal(getattr(ours, field.name), getattr(theirs, field.name))
    assert FeatureFile(tmp_path, ("other",), texts[0].hidden.shape[1]).n_tokens == 0
    assert file.token_nbytes == texts[0].hidden.shape[1] * 2 + 4 + 8 * (4 + 2)


def test_a_head_is_continued(
    bundle: Path, whole: Path, head: heads.TrainedHead, texts: list[TextFeatures], tmp_path: Path
) -> None:
    plan = dataclasses.replace(plan_of(n_epochs=1), is_continued=True)
    untouched = trained(whole, tmp_path / "0", texts, plan, 0)
    assert untouched.head_ids.tolist() == head.head_ids.tolist()
    for name, values in untouched.weights.items():
        step = np.abs(values).max() / 127
        np.testing.assert_allclose(values, head.weights[name], atol=step, err_msg=name)
    on = trained(whole, tmp_path / "1", texts, plan)
    anew = trained(bundle, tmp_path / "2", texts, plan_of(n_epochs=1))
    assert on.n_tokens == 2 * head.n_tokens
    assert on.trained.measured.by_depth[0] > anew.trained.measured.by_depth[0]
    assert on.trained.measured.by_depth[0] >= untouched.trained.measured.by_depth[0]


def test_a_head_that_learns_nothing_better_stays(
    whole: Path, texts: list[TextFeatures], tmp_path: Path
) -> None:
    plan = dataclasses.replace(plan_of(n_epochs=2), is_continued=True)
    untouched = trained(whole, tmp_path / "0", texts, plan, 0)
    wild = dataclasses.replace(plan, training=dataclasses.replace(plan.training, learning_rate=9.0))
    kept = trained(whole, tmp_path / "1", texts, wild)
    for name, values in untouched.weights.items():
        np.testing.assert_array_equal(kept.weights[name], values, err_msg=name)


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e300, math.inf, math.nan])
def test_learning_rates_have_bounds(rate: float) -> None:
    with pytest.raises(ConfigError, match="expected more than 0 and at most"):
        TrainingPlan(learning_rate=rate)


@pytest.mark.parametrize("n_tokens", [2, 5, 500])
def test_pieces_have_every_token_behind_another_once(
    texts: list[TextFeatures], n_tokens: int
) -> None:
    whole = TrainingTexts.of(texts, 40, ())
    cut = whole.in_pieces(n_tokens)
    assert cut.held_out == whole.held_out
    assert {len(piece.tokens) for piece in cut.trained} <= set(range(2, n_tokens + 1))
    for part in ("tokens", "hidden", "top_ids", "top_probs"):
        pieces = [getattr(piece, part) for piece in cut.trained]
        texts_of = [getattr(text, part) for text in whole.trained]
        for rows in (slice(1, None), slice(0, -1)):
            expected = np.concatenate([values[rows] for values in texts_of])
            found = np.concatenate([values[rows] for values in pieces])
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("n", [1, 7, 100, 129])
def test_batches_hold_every_text_once_those_of_like_length_together(n: int) -> None:
    lengths = np.random.default_rng(n).integers(16, 512, n).tolist()
    batches = shuffled_batches(lengths, 4, np.random.default_rng(1))
    assert sorted(i for batch in batches for i in batch) == list(range(n))
    assert len(batches) == -(-n // 4)
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    assert n < 100 or padded < 1.1 * sum(lengths)
    assert n < 100 or batches != shuffled_batches(lengths, 4, np.random.default_rng(2))


def test_too_few_texts(bundle: Path, texts: list[TextFeatures], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the corpus has 1 texts"):
        trained(bundle, tmp_path, texts[:1], plan_of())


def test_lessons_hold_every_eighth_text_out(texts: list[TextFeatures]) -> None:
    lessons = TrainingTexts.of(texts, 40, (2, 0))
    assert (len(lessons.trained), len(lessons.held_out)) == (10, 2)
    assert {0, 2} <= set(lessons.head_ids.tolist())
    assert len(lessons.head_ids) == 40
    assert (np.diff(lessons.head_ids) > 0).all()
