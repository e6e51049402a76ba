"""`edgedec store`, and drafting from a store with `run`, `chat` and `bench`."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from edgedec.runtime.drafting.ngrams.ngram_file import NgramFile
from edgedec.runtime.text.tokenizer import Tokenizer

Cli = Callable[..., Any]
PROMPT = "Name the planets of the solar system, one after the other."
TEXTS = {"a.txt": "The sky is blue.\n" * 3, "sub/b.py": "def größe(): pass\n"}

pytestmark = pytest.mark.e2e


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in TEXTS.items():
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "texts" / "blob.bin").write_bytes(b"\0\1")
    return tmp_path / "texts"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "my.ngrams"


def tokens_in(bundle: Path, file: Path) -> list[int]:
    sha256 = hashlib.sha256((bundle / "tokenizer.json").read_bytes()).hexdigest()
    tokens: list[int] = NgramFile(file, sha256).read().tolist()
    return tokens


def test_seed_and_info(cli: Cli, smollm2_bundle: Path, folder: Path, file: Path) -> None:
    done = cli("store", "seed", file, folder, "--bundle", smollm2_bundle)
    assert done.exit_code == 0
    assert "added 2 files" in done.out
    assert "skipped 1" in done.out
    assert "in 2 texts" in done.out
    assert f"read {folder} ..." in done.err
    encode = Tokenizer.load(smollm2_bundle / "tokenizer.json").encode
    expected = [*encode(TEXTS["a.txt"]), 0xFFFFFFFF, *encode(TEXTS["sub/b.py"]), 0xFFFFFFFF]
    assert tokens_in(smollm2_bundle, file) == expected
    one_by_one = file.with_name("one.ngrams")
    cli("store", "seed", one_by_one, folder, "--bundle", smollm2_bundle, "--parallel", 1)
    assert one_by_one.read_bytes() == file.read_bytes()
    shown = cli("store", "info", file)
    assert shown.exit_code == 0
    sha256 = hashlib.sha256((smollm2_bundle / "tokenizer.json").read_bytes()).hexdigest()
    for fact in (str(file), f"{len(expected) - 2}", sha256[:16], "8.4 MB"):
        assert fact in shown.out
    assert cli("store", "info", file, "--json").json == {
        "store": str(file),
        "version": 3,
        "n_texts": 2,
        "n_tokens": len(expected) - 2,
        "n_bytes": 64 + 4 * len(expected),
        "max_bytes": 8 << 20,
        "tokenizer_sha256": sha256,
    }


def test_more_folders_and_another_limit(
    cli: Cli, smollm2_bundle: Path, folder: Path, file: Path
) -> None:
    done = cli(
        "store", "seed", file, folder, folder / "sub", "--bundle", smollm2_bundle,
        "--max-mb", 1, "--json",
    )  # fmt: skip
    assert done.json["added"]["n_files"] == 3
    assert done.json["n_texts"] == 3
    assert done.json["max_bytes"] == 10**6
    (folder / "large.txt").write_text("0 1 " * 200_000)
    (folder / "late.txt").write_text("too late")
    reported = cli("store", "seed", file, folder, "--bundle", smollm2_bundle)
    assert "it is full: --max-mb lets it hold more" in reported.out
    assert file.stat().st_size <= 10**6
    assert cli("store", "info", file, "--json").json["max_bytes"] == 10**6


def test_interrupted_seeding_leaves_a_good_store(
    cli: Cli, smollm2_bundle: Path, folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Tokenizer.encode_many

    def interrupted(self: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        os.kill(os.getpid(), signal.SIGINT)
        return real(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_many", interrupted)
    done = cli("store", "seed", file, folder, "--bundle", smollm2_bundle, "--json")
    assert done.exit_code == 130
    assert done.json["added"] == {
        "n_files": 1,
        "n_skipped": 2,
        "n_tokens": len(tokens_in(smollm2_bundle, file)) - 1,
        "is_full": False,
    }
    assert cli("store", "info", file, "--json").json["n_texts"] == 1


def test_a_store_makes_the_same_text_in_fewer_passes(
    cli: Cli, smollm2_bundle: Path, file: Path, cheap_rows: None
) -> None:
    options = ("run", smollm2_bundle, PROMPT, "-n", 24, "--json")
    plain = cli(*options, "--method", "plain").json
    first = cli(*options, "--method", "store", "--store", file).json
    assert "store" not in first["stats"]["by_drafter"]
    again = cli(*options, "--method", "lookup+store", "--store", file).json
    assert plain["token_ids"] == first["token_ids"] == again["token_ids"]
    assert again["stats"]["by_drafter"]["store"]["n_accepted"] > 12
    assert again["stats"]["n_passes"] < plain["stats"]["n_passes"] / 2
    n_all = plain["n_prompt_tokens"] + plain["n_new_tokens"]
    assert cli("store", "info", file, "--json").json["n_tokens"] == 2 * n_all


def test_chat_grows_a_store(
    cli: Cli, smollm2_bundle: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\nWho are you?\n"))
    done = cli("chat", smollm2_bundle, "-n", 6, "--method", "store", "--store", file, "--json")
    last = done.json["turns"][-1]
    n_tokens = cli("store", "info", file, "--json").json["n_tokens"]
    assert n_tokens == last["n_prompt_tokens"] + last["n_new_tokens"]  # each turn adds what is new


def test_a_method_that_leaves_the_store_alone_says_so(
    cli: Cli, smollm2_bundle: Path, file: Path
) -> None:
    done = cli("run", smollm2_bundle, PROMPT, "-n", 2, "--method", "lookup", "--store", file)
    assert done.exit_code == 0
    assert f"the method lookup does not draft from {file}: use --method auto or store" in done.err
    reported = cli("run", smollm2_bundle, PROMPT, "-n", 2, "--method", "auto", "--store", file)
    assert "alone" not in reported.err


@pytest.mark.usefixtures("hasty_bench")
def test_bench_reads_a_store_and_leaves_it(
    cli: Cli, smollm2_bundle: Path, file: Path, tmp_path: Path
) -> None:
    cli("run", smollm2_bundle, PROMPT, "-n", 16, "--method", "store", "--store", file)
    before = file.read_bytes()
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": PROMPT}) + "\n")
    options = ("bench", smollm2_bundle, "--prompts", prompts, "--methods", "plain,store", "-r", 1)
    more = ("--max-new-tokens", 16, "--allow-noise", "-o", "json")
    done = cli(*options, *more, "--store", file)
    assert done.exit_code == 0
    assert done.json["settings"]["store"] == str(file)
    assert file.read_bytes() == before
    assert (
        "method store needs an n-gram store: name its file with --store"
        in cli(*options, *more).error
    )


@pytest.mark.robustness
def test_bad_stores_are_refused_before_anything_is_generated(
    cli: Cli, smollm2_bundle: Path, folder: Path, file: Path
) -> None:
    cli("store", "seed", file, folder, "--bundle", smollm2_bundle)
    good = file.read_bytes()
    broken = {
        "truncated to": good[:-3],
        "truncated": good[: len(good) // 2],
        "has version 7, expected 3": good[:8] + b"\7\0\0\0" + good[12:],
        "its checksum is wrong": good[:32] + b"\0" * 32 + good[64:],
        "is not an n-gram store": b"something else",
    }
    for reason, content in broken.items():
        file.write_bytes(content)
        for verb in (("run", smollm2_bundle, PROMPT, "--store"), ("store", "info")):
            if verb[0] == "store" and "tokenizer" in reason:
                continue
            done = cli(*verb, file)
            assert done.exit_code == 1
            assert reason in done.error
        done = cli("store", "seed", file, folder, "--bundle", smollm2_bundle)
        assert reason in done.error
        assert file.read_bytes() == content


def test_what_cannot_be_seeded(
    cli: Cli, smollm2_bundle: Path, folder: Path, file: Path, tmp_path: Path
) -> None:
    done = cli("store", "seed", file, folder, tmp_path / "no", "--bundle", smollm2_bundle)
    assert "expected a folder of text or code" in done.error
    done = cli("store", "seed", file, folder, "--bundle", tmp_path / "none")
    assert "none" in done.error
    assert cli("store", "seed", file, folder).exit_code == 2  # the tokenizer must be known
    assert not file.exists()
    assert "make it with `edgedec store seed`" in cli("store", "info", file).error
    assert not file.exists()
