"""`edgedec inspect`, on whole and on damaged bundles."""

from __future__ import annotations

import hashlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedec.apps.console import consoles, terminal
from edgedec.apps.console.progress import ProgressBars, count_amount
from edgedec.models.manifest import SCHEMA_VERSION

Cli = Callable[..., Any]


@pytest.fixture
def copied(smollm2_bundle: Path, tmp_path: Path) -> Path:
    """A bundle the test may damage."""
    return Path(shutil.copytree(smollm2_bundle, tmp_path / "copy.edgedec"))


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


def test_text(cli: Cli, smollm2_bundle: Path) -> None:
    done = cli("inspect", smollm2_bundle, "--verify")
    assert done.exit_code == 0
    for fact in (
        "SmolLM2",
        "fused",
        "30 x 576",
        "210 q4_1",
        "8192",
        "float16, 23.0 kB a token",
        "every file is as exported",
    ):
        assert fact in done.out


def test_json(cli: Cli, smollm2_bundle: Path) -> None:
    document = cli("inspect", smollm2_bundle, "--json").json
    assert document["schema_version"] == SCHEMA_VERSION
    assert document["models"]["target"]["config"]["n_layers"] == 30
    assert document["damaged_files"] is None
    document = cli("inspect", smollm2_bundle, "--json", "--verify").json
    assert document["damaged_files"] == []


@pytest.mark.robustness
@pytest.mark.parametrize("offset", [0, 12_345_678, -1])
def test_a_flipped_byte_of_the_weights_is_named(cli: Cli, copied: Path, offset: int) -> None:
    weights = copied / "target/weights.bin"
    flip(weights, offset % weights.stat().st_size)
    done = cli("inspect", copied, "--verify")
    assert done.exit_code == 1
    assert "damaged: target/weights.bin" in done.out
    document = cli("inspect", copied, "--verify", "--json")
    assert document.exit_code == 1
    assert document.json["damaged_files"] == ["target/weights.bin"]


@pytest.mark.robustness
def test_small_files_are_checked_at_load(cli: Cli, copied: Path) -> None:
    flip(copied / "target/model.onnx", 99)
    done = cli("run", copied, "hello")
    assert done.exit_code == 1
    assert "target/model.onnx" in done.error
    assert "damaged" in done.error
    assert cli("inspect", copied, "--verify", "--json").json["damaged_files"] == [
        "target/model.onnx"
    ]


@pytest.mark.robustness
def test_a_truncated_file(cli: Cli, copied: Path) -> None:
    with (copied / "target/weights.bin").open("r+b") as file:
        file.truncate(1000)
    done = cli("run", copied, "hello")
    assert done.exit_code == 1
    assert "target/weights.bin" in done.error
    assert "1000 bytes" in done.error


@pytest.mark.robustness
def test_a_hostile_manifest(cli: Cli, copied: Path) -> None:
    manifest = copied / "manifest.json"
    text = manifest.read_text()
    for old, new, word in (
        ('"tokenizer.json"', '"../tokenizer.json"', "relative path"),
        ('"tokenizer.json"', '"/tokenizer.json"', "relative path"),
        (f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 99', "schema_version is 99"),
        ('"n_bytes": ', '"n_bytes": -', "n_bytes"),
    ):
        manifest.write_text(text.replace(old, new))
        for verb in (("run", copied, "hello"), ("inspect", copied)):
            done = cli(*verb)
            assert done.exit_code == 1
            assert word in done.error


def test_names_cannot_steer_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    name = "\x1b]0;gotcha smol\x1b[2J"
    for stream, shown in ((Terminal(), "�]0;gotcha smol�[2J"), (io.StringIO(), name)):
        monkeypatch.setattr("sys.stdout", stream)
        consoles.out.print(name, markup=False)
        assert shown in stream.getvalue()
    stderr = Terminal()
    monkeypatch.setattr("sys.stderr", stderr)
    terminal.note(name)
    terminal.print_error(ValueError(name))
    with ProgressBars(count_amount) as bars:
        bars.report(name, 1, 2)
    assert "gotcha" in stderr.getvalue()
    assert "\x1b]0;" not in stderr.getvalue()
    assert "\x1b[2J" not in stderr.getvalue()


def test_a_graph_that_reads_an_unlisted_file(cli: Cli, copied: Path) -> None:
    graph, manifest = copied / "target" / "model.onnx", copied / "manifest.json"
    content = graph.read_bytes()
    assert content.count(b"weights.bin")
    (copied / "target" / "weighty.bin").write_bytes((copied / "target/weights.bin").read_bytes())
    graph.write_bytes(content.replace(b"weights.bin", b"weighty.bin"))
    digests = [hashlib.sha256(c).hexdigest() for c in (content, graph.read_bytes())]
    manifest.write_text(manifest.read_text().replace(*digests))
    for options in ((), ("--verify",)):
        done = cli("inspect", copied, *options)
        assert done.exit_code == 1
        assert (
            "reads 'weighty.bin', which manifest.models.target.weights does not list" in done.error
        )
