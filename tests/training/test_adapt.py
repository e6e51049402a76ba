"""`edgedec train adapt`: a head learns from kept texts, is swapped in whole, can be put back."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import edgedec
from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.manifest import read_manifest
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.replay_buffer import ReplayBuffer

torch = pytest.importorskip("torch", reason="needs the extra train")

from edgedec.training.features.feature_file import TextFeatures, held_out_of  # noqa: E402
from edgedec.training.features.reading import with_latest_held_out  # noqa: E402
from edgedec.training.heads.adapt_folder import N_NEW, AdaptFolder  # noqa: E402
from edgedec.training.heads.adapt_job import AdaptReport, adapt_head, undo  # noqa: E402
from edgedec.training.heads.train_head import named_instead  # noqa: E402
from edgedec.training.options import TrainingOptions  # noqa: E402

from .head_parts import plan_of, put, trained  # noqa: E402

pytestmark = pytest.mark.slow

N_TOKENS = 40
OPTIONS = TrainingOptions(max_tokens=4000, epochs=8, learning_rate=1e-2, threads=1)


@pytest.fixture(scope="module")
def ignorant(
    bundle: Path, texts: list[TextFeatures], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The bundle with a head that has learned nothing yet."""
    head = trained(bundle, tmp_path_factory.mktemp("features"), texts, plan_of("hydra"), 0)
    path = tmp_path_factory.mktemp("ignorant") / "tiny.edgedec"
    put(bundle, head, path, "int8")
    return path


@pytest.fixture
def own(ignorant: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ignorant, tmp_path / "tiny.edgedec"))


@pytest.fixture
def replay(own: Path, tmp_path: Path) -> Path:
    """Texts that are much alike. The head has learned none of them."""
    path = tmp_path / "my.replay"
    keep(path, own, 3 * N_NEW)
    return path


@pytest.fixture(scope="module")
def after_a_swap(ignorant: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the bundle after its head was trained, and with the texts for that."""
    folder = tmp_path_factory.mktemp("swapped") / "all"
    bundle = Path(shutil.copytree(ignorant, folder / "tiny.edgedec"))
    keep(folder / "my.replay", bundle, 3 * N_NEW)
    assert adapt(bundle, folder / "my.replay").is_swapped
    return folder


@pytest.fixture
def adapted(after_a_swap: Path, tmp_path: Path) -> Path:
    """The bundle with a head that was trained; the earlier one and its texts are beside it."""
    return Path(shutil.copytree(after_a_swap, tmp_path / "all")) / "tiny.edgedec"


def keep(path: Path, bundle: Path, n: int) -> None:
    buffer = ReplayBuffer.made(path, bundle)
    for i in range(n):
        buffer.keep(np.random.default_rng(i % 2).integers(4, 60, N_TOKENS).tolist())


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }


def adapt(
    bundle: Path, replay: Path, is_stopping: Callable[[], bool] = lambda: False
) -> AdaptReport:
    return adapt_head(bundle, replay, OPTIONS, lambda *_: None, is_stopping)


def leftovers(bundle: Path) -> list[str]:
    return sorted(path.name for path in AdaptFolder(bundle).path.iterdir())


def test_a_better_head_is_swapped_in_and_can_be_undone(own: Path, replay: Path) -> None:
    before, written = digests(own), _written(own)
    manifest = read_manifest(own)
    done = adapt(own, replay)
    assert done.is_swapped
    assert done.after > done.before + 0.1
    assert digests(own) != before
    assert _written(own) == written
    assert leftovers(own) == ["before", "texts.json"]
    with pytest.raises(ConfigError, match="has 0 texts that the head has not seen, expected at"):
        adapt(own, replay)
    undo(own)
    assert digests(own) == before
    assert read_manifest(own) == manifest
    with pytest.raises(ConfigError, match="there is no earlier head of"):
        undo(own)


def test_where_nothing_was_adapted_there_is_nothing_to_undo_and_no_folder_is_left(
    own: Path,
) -> None:
    with pytest.raises(ConfigError, match="there is no earlier head of"):
        undo(own)
    assert not AdaptFolder(own).path.exists()


def _written(bundle: Path) -> list[int]:
    with edgedec.load(bundle) as engine:
        config = GenerationConfig(max_new_tokens=24, method="mtp", ignore_eos=True)
        return list(engine.generate([5, 9, 17], config).token_ids)


def test_a_head_that_is_no_better_leaves_the_bundle_as_it_was(adapted: Path) -> None:
    before = digests(adapted), (adapted / "manifest.json").read_bytes()
    replay = adapted.with_name("my.replay")
    keep(replay, adapted, N_NEW)
    done = adapt(adapted, replay)
    assert not done.is_swapped
    assert (digests(adapted), (adapted / "manifest.json").read_bytes()) == before


def test_the_latest_texts_are_held_out() -> None:
    """So no head is measured with what it, or the one before, has learned."""
    texts = [[number] * 100 for number in range(50, 0, -1)]
    held_out = held_out_of(with_latest_held_out([*texts[:3], [1], *texts[3:]], 3300))
    assert [text[0] for text in held_out] == [50, 49, 48, 47]
    assert sorted(text[0] for text in with_latest_held_out(texts, 3300)) == [*range(18, 51)]


def test_tokens_that_texts_need_take_the_place_of_rare_ones(texts: list[TextFeatures]) -> None:
    said = np.array([[7], [7], [901], [901], [500], [902], [902], [902]], np.int32)
    text = dataclasses.replace(texts[0], top_ids=said)
    known = np.array([2, 7, 10, 20, 30], np.int64)
    assert named_instead(known, [text], [2]).tolist() == [2, 7, 10, 901, 902]
    assert named_instead(known[:3], [text], [2]).tolist() == [2, 7, 902], "the commonest first"
    assert named_instead(known, [dataclasses.replace(text, top_ids=said[:2])], [2]).tolist() == (
        known.tolist()
    )


def test_two_processes_never_train_one_head(own: Path, replay: Path) -> None:
    before = digests(own)
    with AdaptFolder(own).alone():
        assert AdaptFolder(own).is_in_use
        with pytest.raises(ConfigError, match="another process trains the head of"):
            adapt(own, replay)
        with pytest.raises(ConfigError, match="another process trains the head of"):
            undo(own)
    assert not AdaptFolder(own).is_in_use
    assert digests(own) == before


@pytest.mark.e2e
def test_one_that_is_killed_leaves_the_bundle_whole_and_goes_on(own: Path, replay: Path) -> None:
    """Killed within reading and within training; the same texts are learned to the end."""
    before = digests(own)
    features = AdaptFolder(own).features
    for sign in ("texts.json", "hydra.npz"):
        process = subprocess.Popen(_command(own, replay), stderr=subprocess.DEVNULL)
        end_s = time.monotonic() + 60
        while not (features / sign).exists() and process.poll() is None:
            assert time.monotonic() < end_s
            time.sleep(0.005)
        process.kill()
        process.wait()
        assert digests(own) == before
    listed = subprocess.run(_KEPT, capture_output=True, check=True)
    assert str(features) in {row["path"] for row in json.loads(listed.stdout)["kept"]}
    last = AdaptFolder(own).used.begun
    keep(replay, own, 1)
    done = subprocess.run(_command(own, replay), capture_output=True, check=True)
    assert json.loads(done.stdout)["is_swapped"]
    assert AdaptFolder(own).used.learned == last
    assert leftovers(own) == ["before", "texts.json"]


def test_texts_of_a_killed_training_can_be_removed(own: Path, replay: Path) -> None:
    features = AdaptFolder(own).features
    process = subprocess.Popen(_command(own, replay), stderr=subprocess.DEVNULL)
    end_s = time.monotonic() + 60
    while not (features / "hydra.npz").exists() and process.poll() is None:
        assert time.monotonic() < end_s
        time.sleep(0.005)
    process.kill()
    process.wait()
    subprocess.run([*_KEPT, "--clear"], capture_output=True, check=True)
    assert not any(features.iterdir())


_KEPT = [sys.executable, "-m", "edgedec", "kept", "replays", "--json"]


def _command(bundle: Path, replay: Path) -> list[str]:
    options = ["--epochs", "30", "--learning-rate", "0.01", "--threads", "1", "--json"]
    command = [sys.executable, "-m", "edgedec", "train", "adapt", str(bundle), *options]
    return [*command, "--from", str(replay)]


def test_one_that_is_stopped_leaves_the_bundle_as_it_was(own: Path, replay: Path) -> None:
    before = digests(own)
    n_left = [4]

    def is_stopping() -> bool:
        n_left[0] -= 1
        return n_left[0] < 0

    with pytest.raises(ConfigError):
        adapt(own, replay, is_stopping)
    assert digests(own) == before
    assert adapt(own, replay).is_swapped


def test_a_bundle_without_a_head(bundle: Path, replay: Path) -> None:
    with pytest.raises(ConfigError, match="has no draft head, expected one of eagle, hydra, med"):
        adapt(bundle, replay)


def test_a_head_of_another_model_is_refused(
    adapted: Path, make_bundle_of: Callable[[int], Path]
) -> None:
    """In the bundle, and as the one that is to be put back."""
    other = make_bundle_of(7)
    shutil.rmtree(adapted)
    shutil.copytree(other, adapted)
    before = digests(adapted)
    with pytest.raises(ConfigError, match="has another model: the earlier head does not fit"):
        undo(adapted)
    assert digests(adapted) == before


@pytest.mark.parametrize("what", ["cut", "edited", "manifest", "gone"])
def test_an_earlier_head_that_is_damaged_is_not_put_back(adapted: Path, what: str) -> None:
    after = digests(adapted)
    kept = AdaptFolder(adapted).path / "before"
    largest = max((p for p in kept.rglob("*.bin")), key=lambda p: p.stat().st_size)
    if what == "cut":
        os.truncate(largest, 10)
    elif what == "edited":
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)
    elif what == "manifest":
        (kept / "manifest.json").write_text("{")
    else:
        largest.unlink()
    with pytest.raises(BundleError):
        undo(adapted)
    assert digests(adapted) == after


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"learned": null, "begun": 1}'])
def test_a_damaged_note_of_what_was_used(own: Path, replay: Path, content: bytes) -> None:
    """All texts are new again."""
    folder = AdaptFolder(own)
    folder.path.mkdir()
    (folder.path / "texts.json").write_bytes(content)
    assert folder.has_news(ReplayBuffer.of_bundle(replay, own))


def test_texts_that_cannot_be_read(own: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot open"):
        adapt(own, tmp_path / "none.replay")
    (tmp_path / "text.replay").write_text("no database")
    with pytest.raises(ConfigError, match="cannot use"):
        adapt(own, tmp_path / "text.replay")
    keep(tmp_path / "few.replay", own, N_NEW - 1)
    with pytest.raises(ConfigError, match=f"has {N_NEW - 1} texts that the head has not seen"):
        adapt(own, tmp_path / "few.replay")
