"""What the program says about mistakes: one problem, its remedy, and no traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

BUNDLE = "b.edgedec"
EXPORT = ("export", "smollm2-135m-instruct", "-o")

TYPED = {
    "no bundle": (("run",), "Missing argument 'BUNDLE'"),
    "an unknown verb": (("rn", BUNDLE, "Hi"), "Did you mean 'run'?"),
    "help of an unknown verb": (("help", "rn"), "Did you mean 'run'?"),
    "no quotes": (("run", BUNDLE, "Hi", "there"), "Put a text of several words in quotes"),
    "a mistyped option": (("run", BUNDLE, "--max-new-token", "5"), "--max-new-tokens"),
    "an option of others": (("run", BUNDLE, "--schema", "x.json"), "--json-schema"),
    "a mistyped option of eval": (("eval", BUNDLE, "--tasks", "x"), "--task"),
    "no tokens": (("run", BUNDLE, "--max-tokens", "-1"), "-1 is not in the range x>=0"),
    "words for a number": (("run", BUNDLE, "--max-tokens", "many"), "'many' is not a valid int"),
    "a cold temperature": (("run", BUNDLE, "--temperature", "-1"), "is not in the range x>=0.0"),
    "a hot temperature": (("run", BUNDLE, "--temperature", "hot"), "is not a valid float"),
    "too large a share": (("run", BUNDLE, "--top-p", "1.5"), "1.5 is not in the range 0.0<=x<=1.0"),
    "no threads": (("run", BUNDLE, "--threads", "0"), "0 is not in the range x>=1"),
    "a seed in words": (("run", BUNDLE, "--seed", "x"), "'x' is not a valid int"),
    "a port that is none": (("serve", BUNDLE, "--port", "99999"), "range 0<=x<=65535"),
    "a port in words": (("serve", BUNDLE, "--port", "abc"), "'abc' is not a valid int"),
    "a negative port": (("lsp", "--tcp", "-1"), "range 0<=x<=65535"),
    "no model": (("export",), "Missing argument 'MODEL'"),
    "no output": (("export", "smollm2-135m-instruct"), "Missing option '--output' / '-o'"),
    "an unknown format": ((*EXPORT, "o", "--quant", "q9"), "is not one of 'keep', 'int8'"),
    "too many words": (("doctor", "extra"), "unexpected extra argument"),
    "a mistyped verb": (("rnu", BUNDLE, "Hi"), "Did you mean 'run'"),
    "help for a mistyped verb": (("help", "runn"), "Did you mean 'run'"),
    "a prompt twice": (("run", BUNDLE, "Hi", "--prompt-file", "a.txt"), "expected one of them"),
    "too many drafts": (("run", BUNDLE, "Hi", "--draft-len", "200"), "200 is not in the range"),
    "too many completions": (("suggest", BUNDLE, "Hi", "-k", "99"), "99 is not in the range"),
    "a chooser that is none": (("run", BUNDLE, "--best-of", "3", "--choose", "best"), "'tests'"),
    "a bias without a value": (("run", BUNDLE, "Hi", "--logit-bias", "x"), "such as 42=-5"),
    "processors in words": (("run", BUNDLE, "Hi", "--affinity", "zero"), "numbers such as 0,1"),
    "sizes in words": (("bench", BUNDLE, "-p", "many"), "expected numbers as in 1,2,4"),
    "a task that is none": (("eval", BUNDLE, "--task", "maths"), "is not one of 'human_eval'"),
    "a task without data": (("eval", BUNDLE), "expected --task and --data with BUNDLE"),
}
"""Mistakes in a command line: exit code 2."""

GIVEN = {
    "a missing model file": (("run", "no.gguf", "Hi"), "there is no file no.gguf: check the path"),
    "a damaged model file": (("run", "bad.gguf", "Hi"), "truncated or damaged, fetch it again"),
    "text called a model": (("run", "text.gguf", "Hi"), "this is not a GGUF file but a text file"),
    "a folder in place of a bundle": (("run", "folder", "Hi"), "`edgedec export` makes one"),
    "a bundle without a manifest": (("run", "x.edgedec", "Hi"), "holds no manifest.json"),
    "a missing bundle": (("chat", "no.edgedec"), "found nothing, expected a bundle directory"),
    "a mistyped name": (("run", "smolm2-135m", "Hi"), "did you mean smollm2-135m-instruct"),
    "an unknown name": (("bench", "zzz"), "edgedec models list shows the names"),
    "a model of the hub": (("run", "org/name", "Hi"), "run edgedec models pull org/name"),
    "no name of the hub": (("models", "pull", "no name"), "expected a hub id such as org/name"),
    "a model that nobody knows": (("models", "show", "zzz"), "fetch others with `edgedec models"),
    "a model that is not here": (("models", "remove", "zzz"), "there is nothing here of 'zzz'"),
    "a text in place of a bundle": (("inspect", "a.txt"), "found a text file, expected a bundle"),
    "a prompt before the bundle": (("run", "Why so?", BUNDLE), "name the bundle before it"),
    "an export of nothing": (("export", "no.gguf", "-o", "o"), "expected a .gguf file, a Hugging"),
    "an export on something": ((*EXPORT, BUNDLE), "replace it with --force"),
    "results that are missing": (("compare", "no.json"), "cannot read no.json"),
    "an unknown compiler": ((*EXPORT, "new", "--compiler", "gcc"), "has fused or tvm"),
    "a web page without its scheme": (
        ("serve", BUNDLE, "--cors", "notes.example"),
        "expected the origin of a page, such as https://notes.example",
    ),
    "a result that is text": (("compare", "a.txt"), "write one with `edgedec bench --save`"),
    "an adapter that is none": ((*EXPORT, "o", "--lora", "folder"), "has no adapter_config.json"),
    "a head that is none": ((*EXPORT, "o", "--head", "a.txt"), "is not a draft head, or damaged"),
    "an unknown target": ((*EXPORT, "o", "--target", "tpu"), "known: coreml, cpu, cuda"),
    "bits for nothing": ((*EXPORT, "o", "--target-bits", "5"), "--target-bits 5 needs --quant"),
    "a text called a model": (("export", "a.txt", "-o", "o"), "this is not a GGUF file"),
    "a folder without a model": (("export", "folder", "-o", "o"), "has no config.json"),
    "a path of the hub": (("models", "pull", "a/b/c"), "expected a hub id such as org/name"),
    "a file for a store": (
        ("store", "seed", "s", "a.txt", "--bundle", BUNDLE),
        "expected a folder of text or code to read",
    ),
    "a store that is missing": (
        ("store", "info", "no.ngrams"),
        "make it with `edgedec store seed`",
    ),
}
"""Mistakes in what a command line names: exit code 1."""

ASKED = {
    "an empty prompt": (("run", BUNDLE, ""), "the prompt is empty: write one, pipe one in"),
    "an empty text": (("suggest", BUNDLE, ""), "the prompt is empty"),
    "a prompt that is missing": (("run", BUNDLE, "--prompt-file", "no.txt"), "No such file"),
    "a folder of prompts": (("run", BUNDLE, "--prompt-file", "folder"), "Is a directory"),
    "a prompt that is not text": (("run", BUNDLE, "--prompt-file", "bin.txt"), "is not UTF-8"),
    "a session that is a folder": (("run", BUNDLE, "Hi", "--session", "folder"), "regular file"),
    "a session nowhere": (("run", BUNDLE, "Hi", "--session", "no/s"), "there is no folder no"),
    "a processor too many": (("run", BUNDLE, "Hi", "--affinity", "0,9999"), "this process may use"),
    "beams with tries": (
        ("run", BUNDLE, "Hi", "--best-of", "4", "--beams", "2"),
        "--beams cannot be combined with --quote, --best-of",
    ),
    "tests without a file": (
        ("run", BUNDLE, "Hi", "--best-of", "3", "--choose", "tests"),
        "--tests FILE.py go together: give both",
    ),
    "a setting of switching": (
        ("run", BUNDLE, "Hi", "--switch", "ead:treshold=1"),
        "unknown switch key 'treshold'; known: ",
    ),
    "another bundle's device": (
        ("run", BUNDLE, "Hi", "--provider", "cuda"),
        "export the model with --target ort",
    ),
    "a quote of nothing": (("run", BUNDLE, "Hi", "--quote", "empty.txt"), "not only blanks"),
    "an unknown method": (("run", BUNDLE, "Hi", "--method", "magic"), "expected plain, auto, or"),
    "too many threads": (("run", BUNDLE, "Hi", "--threads", "9999"), "this machine's processors"),
    "too small a context": (("run", BUNDLE, "Hi", "--context", "1"), "shorten the prompt, or"),
    "an empty stop": (("run", BUNDLE, "Hi", "--stop", ""), "expected text that is not empty"),
    "a schema that is missing": (("run", BUNDLE, "Hi", "--json-schema", "no"), "cannot read no"),
    "a grammar that is missing": (("run", BUNDLE, "Hi", "--grammar", "no"), "cannot read no"),
}
"""Mistakes in what is asked of a bundle that is there: exit code 1."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands run in, with files that they should not be given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "x.edgedec").mkdir()
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bin.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "text.gguf").write_text("text")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF\0\0")
    return tmp_path


def check(outcome: Any, code: int, reported: str) -> None:
    assert outcome.exit_code == code
    assert reported in outcome.err
    assert "Traceback" not in outcome.err
    assert outcome.out == ""


@pytest.mark.parametrize("mistake", TYPED)
def test_mistakes_in_a_command_line(cli: Cli, place: Path, mistake: str) -> None:
    (place / BUNDLE).mkdir()
    (place / BUNDLE / "manifest.json").write_text("{}")
    arguments, reported = TYPED[mistake]
    check(cli(*arguments), 2, reported)


@pytest.mark.parametrize("mistake", GIVEN)
def test_mistakes_in_what_is_named(cli: Cli, place: Path, mistake: str) -> None:
    (place / BUNDLE).mkdir()
    arguments, reported = GIVEN[mistake]
    outcome = cli(*arguments)
    check(outcome, 1, reported)
    assert outcome.error.count("\n") == 0
    assert "exporting" not in outcome.err  # what cannot be exported is refused first


def test_a_list_of_texts_in_place_of_a_fleet(cli: Cli, place: Path) -> None:
    pytest.importorskip("asyncssh", reason="needs the extra fleet")
    check(cli("fleet", "doctor", place / "a.txt"), 1, "not a TOML file")


@pytest.mark.e2e
@pytest.mark.parametrize("mistake", ASKED)
def test_mistakes_in_what_is_asked(
    cli: Cli, place: Path, smollm2_bundle: Path, mistake: str
) -> None:
    (place / BUNDLE).symlink_to(smollm2_bundle)
    arguments, reported = ASKED[mistake]
    check(cli(*arguments), 1, reported)
