"""Draft heads: the graph against torch, what training keeps, and what a bundle says of it."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.apps.training.head_check import share_found
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.draft_heads import head_features, own_features
from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.manifest import BundleManifest, read_manifest
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.sessions.memory import fingerprint_of
from edgedec.runtime.sessions.passes import Pass
from edgedec.runtime.sessions.sequence import TokenSequence
from edgedec.runtime.sessions.token_tree import TokenTree

torch = pytest.importorskip("torch", reason="needs the extra train")

from edgedec.export.heads import train_head as heads  # noqa: E402
from edgedec.export.heads.feature_file import (  # noqa: E402
    FeatureFile,
    TextFeatures,
    held_out_of,
)
from edgedec.export.heads.torch_head import TorchHead  # noqa: E402
from edgedec.export.heads.training import Lessons, TrainingPlan  # noqa: E402

LAYERS = (1, 2)
N_LOGITS = 60
CONTEXT = 96


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def bundle(
    make_gguf: Callable[..., Path],
    tiny: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A tiny model with biases, whose weights are no larger than those of real ones."""
    path = tmp_path_factory.mktemp("model") / "tiny.edgedec"
    random = tiny.tiny_weights(has_bias=True)
    weights = {name: w / 16 if w.ndim == 2 else w for name, w in random.items()}
    source = str(make_gguf("qwen2", weights=weights))
    export(ExportConfig(source, path, context=CONTEXT, hidden_layers=LAYERS))
    return path


def read(bundle: Path, n_texts: int) -> list[TextFeatures]:
    """Returns texts that are much alike, with features."""
    manifest, texts = read_manifest(bundle), []
    epsilon = manifest.target.config.rms_norm_eps
    model = open_model(bundle, manifest.target, 1)
    for i in range(n_texts):
        sequence = TokenSequence(model, CONTEXT)
        rng = np.random.default_rng(i % 2)
        tokens: list[int] = rng.integers(4, 60, 48 + i).tolist()
        rows = sequence.forward(TokenTree.chain(tokens), range(len(tokens)), LAYERS)
        own = head_features(rows.hidden, LAYERS, epsilon)
        hidden = own[:, : len(LAYERS) * manifest.target.config.hidden_size]
        probs = np.exp(rows.stats.top_logits - rows.stats.log_sum_exp[:, None])
        texts.append(
            TextFeatures(
                (".a", ".b")[i % 2],
                np.array(tokens, np.int32),
                hidden.astype(np.float16),
                rows.stats.top_ids.astype(np.int32),
                probs.astype(np.float16),
            )
        )
    release_model(model)
    return texts


@pytest.fixture(scope="module")
def texts(bundle: Path) -> list[TextFeatures]:
    return read(bundle, 12)


def feature_file(folder: Path, texts: list[TextFeatures]) -> FeatureFile:
    file = FeatureFile(folder, ("test",), texts[0].hidden.shape[1])
    for text in texts[len(file.lengths) :]:
        file.add(text)
    return file


def plan_of(**fields: Any) -> heads.HeadPlan:
    training = {"n_epochs": 6, "n_steps": 3, "batch": 3, "learning_rate": 3e-3, **fields}
    return heads.HeadPlan(TrainingPlan(**training), N_LOGITS)


def trained(
    bundle: Path, folder: Path, texts: list[TextFeatures], plan: heads.HeadPlan, most: int = 10**9
) -> heads.TrainedHead:
    """Returns a head after at most so many steps."""
    n_left = [most]

    def is_over() -> bool:
        n_left[0] -= 1
        return n_left[0] < 0

    file = feature_file(folder, texts)
    manifest = read_manifest(bundle)
    return heads.train_head(bundle, manifest, file, len(LAYERS), plan, lambda *_: None, is_over)


def put(bundle: Path, head: heads.TrainedHead, destination: Path, scheme: str) -> BundleManifest:
    manifest = read_manifest(bundle)
    fingerprint = fingerprint_of(manifest, manifest.target_name)
    entry = heads.head_entry(head, manifest.target, fingerprint, LAYERS, scheme, "texts")
    return heads.put_head(bundle, manifest, head, entry, destination, False)


@pytest.fixture(scope="module")
def head(
    bundle: Path, texts: list[TextFeatures], tmp_path_factory: pytest.TempPathFactory
) -> heads.TrainedHead:
    return trained(bundle, tmp_path_factory.mktemp("features"), texts, plan_of())


@pytest.fixture(scope="module")
def whole(bundle: Path, head: heads.TrainedHead, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle with the head."""
    path = tmp_path_factory.mktemp("whole") / "tiny-head.edgedec"
    put(bundle, head, path, "int8")
    return path


def torch_logits(
    bundle: Path, head: heads.TrainedHead, text: TextFeatures, n_steps: int
) -> list[np.ndarray]:
    """Returns the logits of each step, [T, N], computed in float32."""
    manifest = read_manifest(bundle)
    parent = heads.BundleWeights(bundle, manifest.target)
    embedding = {"embed_tokens.weight": parent.matrix("embed_tokens.weight")}
    model = TorchHead(head.config, embedding | head.weights, len(text.tokens))
    with torch.no_grad():
        tokens = torch.from_numpy(text.tokens.astype(np.int64))[None]
        hidden = torch.from_numpy(text.hidden.astype(np.float32))[None]
        return [logits[0].numpy() for logits in model(tokens, hidden, n_steps)]


def graph_logits(bundle: Path, text: TextFeatures, shift: int = 1) -> list[np.ndarray]:
    """Returns the logits of the head's graph: of the text, and two drafted tokens deep."""
    entry = read_manifest(bundle).head
    assert entry is not None
    size, n = entry.head.config.hidden_size, len(text.tokens)
    model = open_model(bundle, entry.head, 1)
    sequence = TokenSequence(model, CONTEXT)
    known = np.zeros((n, entry.head.contract.can.features), np.float32)
    known[shift:, :-size] = text.hidden[: n - shift].astype(np.float32)
    tokens, found = text.tokens.tolist(), []
    rows = sequence.run(Pass(sequence, TokenTree.chain(tokens), range(n), (1,), features=known))
    found.append(rows.logits.copy())
    outputs = rows.hidden[1].copy()
    deep = [np.zeros_like(found[0]), np.zeros_like(found[0])]
    for place in range(2, n):
        # The text to `place` - 2 is committed; then its next two tokens as if they were drafted.
        sequence.truncate(0)
        committed = TokenTree.chain(tokens[: place - 1])
        sequence.run(Pass(sequence, committed, (), features=known[: place - 1]))
        sequence.commit(range(place - 1))
        own = own_features(outputs[place - 2 : place - 1], len(LAYERS))
        one = TokenTree.chain(tokens[place - 1 : place])
        rows = sequence.run(Pass(sequence, one, (0,), (1,), features=own))
        deep[0][place - 1] = rows.logits[0]
        own = own_features(rows.hidden[1].copy(), len(LAYERS))
        two = TokenTree.chain(tokens[place - 1 : place + 1])
        rows = sequence.run(Pass(sequence, two, (1,), n_known=1, features=own))
        deep[1][place] = rows.logits[0]
    release_model(model)
    return [*found, *deep]


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


def test_training_learns(
    bundle: Path, texts: list[TextFeatures], head: heads.TrainedHead, tmp_path: Path
) -> None:
    losses: list[float] = []
    file = feature_file(tmp_path, texts)
    heads.train_head(
        bundle,
        read_manifest(bundle),
        file,
        len(LAYERS),
        plan_of(),
        lambda what, done, total: losses.append(float(what.rpartition(" ")[2])),
    )
    print(losses, head.trained.measured)
    assert head.trained.measured.by_depth[0] > 0.5
    assert losses[-1] < 0.7 * losses[0]
    measured = head.trained.measured
    assert len(measured.by_depth) == 3
    assert set(measured.by_kind) == {".b"}
    assert 0 < measured.covered <= 1


def test_quantising_costs_little(
    whole: Path, bundle: Path, head: heads.TrainedHead, texts: list[TextFeatures]
) -> None:
    expected = torch_logits(bundle, head, texts[1], 1)[0]
    error = np.abs(graph_logits(whole, texts[1])[0] - expected).mean()
    assert 0 < error < 0.1 * expected.std()


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


def start_training(bundle: Path, folder: Path, *more: str) -> subprocess.Popen[str]:
    """Returns the command at work, in a process of its own, on the source of this folder."""
    corpus = str(Path(__file__).parent)
    asked = ["train", "head", str(bundle), "--corpus", corpus, "-o", str(folder / "new.edgedec")]
    options = [
        "--max-tokens",
        "3000",
        "--self",
        "400",
        "--vocabulary",
        "64",
        "--threads",
        "1",
        "--json",
        *more,
    ]
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
    while not (work / "training.npz").exists():  # written after an epoch
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    n_read = (work / "tokens.bin").stat().st_size // 4
    assert n_read >= 1500
    assert not (tmp_path / "new.edgedec").exists()
    again = start_training(bundle, tmp_path, "--epochs", "100000")
    before = (work / "training.npz").stat().st_mtime_ns
    while (work / "training.npz").stat().st_mtime_ns == before:
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
    assert report["by_kind"].keys() == {".py"}
    kinds = json.loads((work / "texts.json").read_text())["kinds"]
    assert sorted(set(kinds)) == [".py", "self"]


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
    with pytest.raises(ConfigError, match="loss of the first epoch is no number"):
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
    n_proposed = 0
    with edgedec.load(whole) as engine:
        for seed, prompt in enumerate(["hello", "1212 1212 hello he", "   w"]):
            request = GenerationConfig(
                max_new_tokens=24,
                ignore_eos=True,
                seed=seed,
                sampling=SamplingConfig(temperature=temperature),
            )
            plain = engine.generate(prompt, dataclasses.replace(request, method="plain"))
            found = engine.generate(prompt, dataclasses.replace(request, method=method))
            assert found.token_ids == plain.token_ids
            assert not found.stats.failed_drafters
            n_proposed += found.stats.n_proposed
    assert n_proposed or method == "auto"


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


def test_too_few_texts(bundle: Path, texts: list[TextFeatures], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the corpus has 1 texts"):
        trained(bundle, tmp_path, texts[:1], plan_of())


def test_lessons_hold_every_eighth_text_out(texts: list[TextFeatures]) -> None:
    lessons = Lessons.of(texts, 40, (2, 0))
    assert (len(lessons.trained), len(lessons.held_out)) == (10, 2)
    assert {0, 2} <= set(lessons.head_ids.tolist())
    assert len(lessons.head_ids) == 40
    assert (np.diff(lessons.head_ids) > 0).all()
