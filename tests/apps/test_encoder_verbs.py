"""Verbs on an embedding model: those that write texts refuse it by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tiny_encoder import write_encoder

from .conftest import Cli

pytestmark = pytest.mark.slow  # the file makes a model first


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder") / "mini"
    write_encoder(folder, default="query", dense=(12,))
    return folder


@pytest.fixture
def bundle(cli: Cli, folder: Path) -> Path:
    path = folder.parent / "mini.edgedec"
    if not path.exists():
        done = cli("export", folder, "-o", path)
        assert done.exit_code == 0, done.err
        assert "cosine of hidden states 0.99999" in done.err
        assert "KL" not in done.err
    return path


def test_inspect(cli: Cli, bundle: Path) -> None:
    shown = cli("inspect", bundle).out
    for words in (
        "12 numbers, pooling mean",
        "query (default), document",
        "dense.bin",
        "min_cosine",
    ):
        assert words in shown, shown
    assert "methods" not in shown


@pytest.mark.parametrize(
    "line",
    [
        "run {b} a",
        "chat {b}",
        "suggest {b} a",
        "bench {b}",
        "bench {b} --prompts {p}",
        "tune {b} --prompts {p}",
        "eval {b} --task gsm8k --data {p}",
        "train head {b} -o {h} --self 10 --prompts {p}",
        "train draft {b} -o {h} --layers 1 --self 10 --prompts {p}",
    ],
)
def test_verbs_that_write_refuse_it(cli: Cli, bundle: Path, tmp_path: Path, line: str) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps({"prompt": "a", "question": "a", "answer": "#### 1"}) + "\n")
    words = line.format(b=bundle, p=prompts, h=tmp_path / "h").split(" ")
    done = cli(*words)
    assert done.exit_code != 0
    assert "makes vectors of texts and writes none" in done.err, done.err
    assert "Traceback" not in done.err
