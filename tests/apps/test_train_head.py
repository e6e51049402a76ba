"""`edgedec train head`: what it reads of a corpus, and what it cannot train. Its page runs it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgedec.models.errors import ConfigError
from edgedec.system.locks import lock_folder
from edgedec.training.features.corpus import Corpus
from edgedec.training.kv_maps.fit_maps import corpus_windows

from .conftest import Cli

WINDOW = 8


def letters(text: str) -> list[int]:
    return [ord(c) for c in text]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two long texts, a short one, and three files that are no text."""
    (tmp_path / "long.py").write_text("abcdefgh" * 5)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "other.md").write_text("ABCDEFGH" * 3)
    (tmp_path / "short.txt").write_text("xy")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\0\0" * 100)
    (tmp_path / "zeros.txt").write_bytes(b"text\0text")
    (tmp_path / "latin1.txt").write_bytes("größe ".encode("latin-1") * 20_000)
    (tmp_path / ".hidden").write_text("never")
    return tmp_path


def test_every_file_has_its_turn_before_any_has_two(folder: Path) -> None:
    corpus = Corpus((folder,), WINDOW)
    found = list(corpus.windows(letters))
    assert {kind for kind, _ in found[:3]} == {".py", ".md", ".txt"}
    assert [kind for kind, _ in found].count(".py") == 5
    assert [kind for kind, _ in found].count(".md") == 3
    assert corpus.n_skipped == 3
    assert found == list(Corpus((folder,), WINDOW).windows(letters))


def test_a_character_cut_in_two_is_no_reason_to_skip(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("a" + "é" * 40_000)
    corpus = Corpus((tmp_path / "long.txt",), 10_000)
    assert len(list(corpus.windows(letters))) > 0
    assert corpus.n_skipped == 0
    (window,) = corpus_windows(corpus.paths, letters, 10_000)
    assert window[:2] == letters("aé")


def test_a_corpus_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a text file or a folder to learn from"):
        list(Corpus((tmp_path / "nowhere",), WINDOW).windows(letters))


@pytest.mark.e2e
def test_what_cannot_be_trained(cli: Cli, smollm2_bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the extra train")
    asked = ("train", "head", smollm2_bundle, "--corpus", Path(__file__), "-o", tmp_path / "new")
    error = cli(*asked).error
    assert (
        "returns the hidden states of the layers [30], a draft head needs those of an early"
        in error
    )
    assert "export the model again with --hidden-layers 2,15" in error
    exits = (*asked[:1], "exit", *asked[2:], "--exit")
    assert "again with --exit 8" in cli(*exits, "8").error
    assert "--exit is 30, expected 1 to 29 of 30 layers" in cli(*exits, "30").error
    assert "a head is quantised as int8, int4" in cli(*asked, "--quantization", "keep").error
    assert "no draft head of the kind 'clover', expected one of eagle, hydra, medusa" in (
        cli(*asked, "--kind", "clover").error
    )
    assert "has no draft head, expected one of the kind hydra" in (
        cli(*asked, "--kind", "hydra", "--continue").error
    )
    light = (*asked, "--kind", "hydra")
    assert "expected more than 0 and at most 1e+30" in cli(*light, "--learning-rate", "inf").error
    assert "--minutes is nan, expected a number" in cli(*light, "--minutes", "nan").error
    into = tmp_path / "nowhere" / "head.safetensors"
    assert "there is no such folder" in cli(*light, "--head-file", into).error
    unread = (*asked[:4], tmp_path, *asked[5:], "--kind", "hydra")
    assert "the corpus has 0 texts" in cli(*unread).error
    assert list(tmp_path.iterdir()) == []
    draft = (*asked[:1], "draft", *asked[2:])
    assert "--layers N, or as another model, --from BUNDLE" in cli(*draft).error
    assert "--layers is 31, expected 1 to 30" in cli(*draft, "--layers", "31").error
    odd = cli(*draft, "--layers", "2", "--loss", "l2").error
    assert "got the loss 'l2', expected one of kl, reverse-kl, jsd, tvd" in odd
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "mine").touch()
    assert "exists already" in cli(*asked).error
    assert sorted(tmp_path.iterdir()) == [tmp_path / "new"]


@pytest.mark.e2e
def test_two_trainings_of_one_head_do_not_mix(cli: Cli, small_bundle: Path, tmp_path: Path) -> None:
    """What the first has read stays as it is."""
    pytest.importorskip("torch", reason="needs the extra train")
    folder = tmp_path / ".head.edgedec.features"
    folder.mkdir()
    (folder / "tokens.bin").write_bytes(b"of the first")
    lock = lock_folder(folder)
    assert lock is not None
    corpus, output = Path(__file__).parent, tmp_path / "head.edgedec"
    done = cli("train", "head", small_bundle, "--kind", "medusa", "--corpus", corpus, "-o", output)
    assert f"another training uses {folder}: wait until it ends, or choose" in done.error
    assert (folder / "tokens.bin").read_bytes() == b"of the first"
    os.close(lock)
    assert not output.exists()


@pytest.mark.e2e
def test_stopped_before_there_was_anything_to_learn(
    cli: Cli, smollm2_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="needs the extra train")
    read = Corpus.windows

    def stopped(
        self: Corpus, encode: Callable[[str], list[int]]
    ) -> Iterator[tuple[str, list[int]]]:
        signal.raise_signal(signal.SIGINT)
        yield from read(self, encode)

    monkeypatch.setattr(Corpus, "windows", stopped)
    output = tmp_path / "head.edgedec"
    done = cli(
        "train", "head", smollm2_bundle, "--kind", "medusa", "--corpus", Path(__file__).parent,
        "-o", output,
    )  # fmt: skip
    assert done.exit_code == 130
    assert "stopped before there was anything to keep" in done.err
    assert not output.exists()
