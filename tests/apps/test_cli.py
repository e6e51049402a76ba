"""The front door: help, usage errors, exit codes, logs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs
import pytest
import typer

from edgedec import __version__
from edgedec.apps import inspect as inspect_bundle
from edgedec.apps.model_names import find_bundle
from edgedec.apps.verbs import SUMMARIES, VERBS, make_app
from edgedec.models.errors import ConfigError

Cli = Callable[..., Any]
NAME = "smollm2-135m-instruct"


def test_help_names_every_verb_and_shows_examples(cli: Cli) -> None:
    done = cli("--help")
    assert done.exit_code == 0
    for verb in VERBS:
        assert verb in done.out
        page = cli(verb, "--help")
        assert page.exit_code == 0
        assert f"edgedec {verb}" in page.out.split("Example", 1)[1]


def test_the_overview_says_of_verbs_what_they_say_themselves() -> None:
    verbs = typer.main.get_command(make_app(VERBS)).commands  # type: ignore[attr-defined]
    own = {name: verb.help.partition("\n\n")[0] for name, verb in verbs.items()}
    assert {name: " ".join(text.split()) for name, text in own.items()} == SUMMARIES
    assert list(SUMMARIES) == list(VERBS)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_overview_imports_no_verb(option: str) -> None:
    """NumPy and ONNX Runtime take longer than everything that is shown here."""
    code = (
        "import sys\nfrom edgedec.apps.cli import main\n"
        f"try:\n    main([{option!r}])\nexcept SystemExit:\n    pass\n"
        "print(*{'numpy', 'onnxruntime'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "edgedec" in done.stdout
    assert done.stderr.split() == []


def test_help_names_the_extra_that_training_needs(cli: Cli) -> None:
    page = " ".join(cli("train", "head", "--help").out.split())
    assert "Needs torch, of the extra train" in page.replace("`", "")


def test_version(cli: Cli) -> None:
    done = cli("--version")
    assert (done.exit_code, done.out) == (0, f"edgedec {__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["run"],
        ["run", "b.edgedec", "text", "--prompt-file", "f"],
        ["run", "b.edgedec", "text", "--top-p", "2"],
        ["run", "b.edgedec", "text", "--temperature", "-1"],
        ["run", "b.edgedec", "text", "-n", "-1"],
        ["run", "b.edgedec", "text", "--seed", "x"],
        ["run", "b.edgedec", "text", "--logit-bias", "5"],
        ["run", "b.edgedec", "text", "--logit-bias", "a=1"],
        ["run", "b.edgedec", "text", "--unknown"],
        ["export", "model.gguf"],
        ["export", "model.gguf", "-o", "b", "--quant", "int2"],
        ["export", "model.gguf", "-o", "b", "--hidden-layers", "3;4"],
        ["export", "model.gguf", "-o", "b", "--context", "0"],
        ["inspect"],
    ],
)
def test_wrong_command_lines_exit_with_2(cli: Cli, arguments: list[str]) -> None:
    done = cli(*arguments)
    assert done.exit_code == 2
    assert done.out == ""
    assert "Traceback" not in done.err


def test_failures_exit_with_1_and_one_line(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", tmp_path / "nothing", "hello")
    assert done.exit_code == 1
    assert "expected a bundle directory" in done.error
    assert "a name is too long for a file: aaaa" in cli("run", "a" * 300, "hello").error
    done = cli("export", "x", "-o", tmp_path / "b", "--target", "toaster")
    assert "unknown device target 'toaster'; known: coreml, cpu, " in done.error
    done = cli("export", "x", "-o", tmp_path / "b", "--draft-quantization", "int8")
    assert "--draft-quantization needs --draft MODEL" in done.error


def test_debug_shows_the_traceback(cli: Cli, tmp_path: Path) -> None:
    done = cli("inspect", tmp_path, "--debug")
    assert done.exit_code == 1
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("error: ")


def test_what_nobody_foresaw_is_one_line_too(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr(inspect_bundle, "read_manifest", fail)
    done = cli("inspect", tmp_path)
    assert done.exit_code == 1
    assert "unexpected ZeroDivisionError: by design" in done.error


def test_log_level(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_LOG", "loud")
    done = cli("doctor")
    assert done.exit_code == 1
    assert "EDGEDEC_LOG is 'loud'" in done.error


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["eval", NAME, "--task", "perplexity", "--data", "{}/none.txt"], "{}/none.txt"),
        (["store", "seed", "{}/a.ngrams", "{}", "--bundle", NAME], ""),
        (["bench", NAME, "--prompts", "{}/none.jsonl", "--draft", NAME], "{}/none.jsonl"),
        (
            ["train", "draft", NAME, "--from", NAME, "--layers=99", "--corpus", "{}", "-o", "{}/b"],
            "--layers is 99",
        ),
    ],
)  # fmt: skip
def test_a_name_serves_wherever_a_bundle_is_taken(
    cli: Cli, smollm2_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    arguments: list[str], said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / "cache"))
    (tmp_path / "cache" / "bundles").mkdir(parents=True)
    (tmp_path / "cache" / "bundles" / f"{NAME}.edgedec").symlink_to(smollm2_bundle)
    done = cli(*(part.format(tmp_path) for part in arguments))
    assert done.exit_code == bool(said), done.err
    assert said.format(tmp_path) in done.err


def test_nobodys_folder_is_named() -> None:
    with pytest.raises(ConfigError, match="~nobodyx/b begins with ~nobodyx, which is no user"):
        find_bundle("~nobodyx/b")
