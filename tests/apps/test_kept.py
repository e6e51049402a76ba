"""What is kept of a user's texts: nothing unasked; what was asked for is listed and removed."""

from __future__ import annotations

import io
import json
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.apps.kept_texts import places
from edgedec.models.manifest import TOKENIZER_NAME
from edgedec.runtime.text.tokenizer import Tokenizer

Cli = Callable[..., Any]
PROMPT = "Dear diary, my secret neighbour Wilhelmina keeps eleven purple tortoises upstairs. " * 8
WORDS = ("Wilhelmina", "tortoises")

pytestmark = pytest.mark.e2e


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder for all that programs write unasked."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    for name in ("CACHE", "STATE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
    return folder


def files_under(folder: Path) -> Iterator[Path]:
    """Yields every file in a folder."""
    yield from (path for path in sorted(folder.rglob("*")) if path.is_file())


def revealing(home: Path, bundle: Path) -> list[Path]:
    """Returns the files under ``home`` that have words or runs of token ids of the prompt."""
    ids = Tokenizer.load(bundle / TOKENIZER_NAME).encode(PROMPT)[8:12]
    signs = [word.encode() for word in WORDS]
    signs += [np.asarray(ids, dtype).tobytes() for dtype in ("<i2", "<i4", "<i8")]
    signs += [json.dumps(ids)[1:-1].encode(), json.dumps(ids, separators=(",", ":"))[1:-1].encode()]
    return [path for path in files_under(home) if any(sign in path.read_bytes() for sign in signs)]


@pytest.mark.parametrize(
    "verb",
    ["run", "run --json", "run --best-of 2", "chat", "suggest", "bench", "inspect", "doctor"],
)
@pytest.mark.usefixtures("hasty_bench")
def test_no_verb_keeps_texts_unasked(
    cli: Cli,
    small_bundle: Path,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
) -> None:
    name, *options = verb.split()
    asked = {
        "run": [small_bundle, PROMPT, "-n", 4],
        "chat": [small_bundle, "-n", 4],
        "suggest": [small_bundle, PROMPT, "-n", 4],
        "bench": [small_bundle, "-p", 8, "-n", 1, "--allow-noise"],
        "inspect": [small_bundle],
        "doctor": [],
    }[name]
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT if name == "chat" else ""))
    assert cli(name, *asked, *options).exit_code == 0
    assert revealing(home, small_bundle) == []
    assert "nothing is kept" in cli("kept").out


@pytest.mark.usefixtures("hasty_bench")
def test_no_verb_that_reads_files_keeps_their_texts(
    cli: Cli, small_bundle: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    texts, task = notes / "diary.txt", tmp_path / "task.jsonl"
    texts.write_text(PROMPT, encoding="utf-8")
    task.write_text(json.dumps({"prompt": PROMPT, "answer": "7"}), encoding="utf-8")
    result, store = tmp_path / "a.json", tmp_path / "a.ngrams"
    asked = [
        ("eval", small_bundle, "--task", "perplexity", "--data", texts),
        ("store", "seed", store, notes, "--bundle", small_bundle),
        ("bench", small_bundle, "--prompts", task, "-n", 2, "--allow-noise", "--save", result),
        ("compare", result, "--allow-noise"),
        ("models", "list"),
        ("inspect", small_bundle),
    ]
    monkeypatch.chdir(home)
    for words in asked:
        done = cli(*words)
        assert done.exit_code == 0, (words, done.err)
        assert revealing(home, small_bundle) == [], words
    assert "nothing is kept" in cli("kept").out


def test_an_export_with_a_prompt_keeps_none(
    cli: Cli, small_model: Path, small_bundle: Path, home: Path, tmp_path: Path
) -> None:
    done = cli("export", small_model, "-o", tmp_path / "a.edgedec")
    assert done.exit_code == 0, done.err
    assert "nothing is kept" in cli("kept").out
    assert [path for path in files_under(home) if path.suffix != ".json"] == []


def _serving(*arguments: object) -> tuple[subprocess.Popen[str], int]:
    """Starts `edgedec serve`; returns its process and port."""
    program = [sys.executable, "-c", "from edgedec.apps.cli import main; main()", "serve"]
    words = [*program, *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while not (port := re.search(r"127\.0\.0\.1:(\d+)", line := process.stderr.readline())):
        assert line, process.wait(60)
    return process, int(port[1])


def test_the_server_keeps_no_texts_unasked(cli: Cli, small_bundle: Path, home: Path) -> None:
    pytest.importorskip("uvicorn")
    process, port = _serving(small_bundle)
    try:
        for path, body in (
            ("/v1/completions", {"prompt": PROMPT, "max_tokens": 4}),
            ("/v1/responses", {"input": PROMPT, "max_output_tokens": 16}),
        ):
            connection = HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("POST", path, json.dumps(body))
            assert connection.getresponse().status == 200
            connection.close()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert revealing(home, small_bundle) == []
    assert "nothing is kept" in cli("kept").out


def test_an_editor_is_told_once_what_was_asked_for(
    cli: Cli, small_bundle: Path, home: Path, tmp_path: Path
) -> None:
    pytest.importorskip("pygls")
    from .lsp.conftest import Editor

    learned, sessions = tmp_path / "learned", tmp_path / "sessions"
    heard = []
    for options in ((), *[("--learn", str(learned), "--session", str(sessions))] * 2):
        editor = Editor(str(small_bundle), *options)
        try:
            editor.begin()
            editor.wait_until_loaded()
            place = {"textDocument": {"uri": editor.open(PROMPT)}, "position": {"line": 0}}
            place["position"]["character"] = len(PROMPT)
            params = {**place, "context": {"triggerKind": 2}}
            editor.request("textDocument/inlineCompletion", params)
            assert editor.end() == 0
        finally:
            editor.process.kill()
        heard.append(json.dumps(editor.heard).count("`edgedec kept` lists and removes it"))
        if not options:
            assert revealing(home, small_bundle) == []
    assert heard == [0, 2, 0]
    rows = {row["kind"]: row for row in cli("kept", "--json").json["kept"]}
    assert Path(rows["sessions"]["path"]) == sessions
    assert cli("kept", "--clear").exit_code == 0
    assert not any(files_under(sessions)), "what the model read is gone"
    assert not any(files_under(learned))


def test_a_history_is_said_listed_and_removed(
    cli: Cli, small_bundle: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readline = pytest.importorskip("readline")
    path = tmp_path / "lines.txt"
    path.write_text("Wilhelmina\n", encoding="utf-8")
    readline.clear_history()
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello"))
    piped = cli("chat", small_bundle, "-n", 2, "--history", path)
    assert "kept" not in piped.err  # nobody types, so no line is kept
    assert "nothing is kept" in cli("kept").out
    first = _typed_chat(cli, small_bundle, path, monkeypatch)
    assert first.err.count("`edgedec kept` lists and removes it") == 1
    assert "`edgedec kept`" not in _typed_chat(cli, small_bundle, path, monkeypatch).err
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (row,) = cli("kept", "--json").json["kept"]
    assert (row["kind"], Path(row["path"])) == ("histories", path)
    assert cli("kept", "sessions", "--clear").exit_code == 0
    assert "Wilhelmina" in path.read_text(encoding="utf-8")
    assert cli("kept", "histories", "--clear").exit_code == 0
    assert not path.exists()
    readline.clear_history()


def _typed_chat(cli: Cli, bundle: Path, history: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    typed = io.StringIO(PROMPT)
    monkeypatch.setattr(typed, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", typed)
    done = cli("chat", bundle, "-n", 4, "--history", history)
    assert done.exit_code == 0, done.err
    return done


def test_what_was_asked_for_is_said_once_listed_and_removed(
    cli: Cli, small_bundle: Path, home: Path, tmp_path: Path
) -> None:
    session, replay, store = (tmp_path / name for name in ("a.session", "a.replay", "a.ngrams"))
    options = ("run", small_bundle, PROMPT, "-n", 4, "--prefix-disk", 10, "--session", session,
               "--adapt", replay, "--store", store)  # fmt: skip
    first = cli(*options)
    assert first.exit_code == 0, first.err
    assert first.err.count("`edgedec kept` lists and removes it") == 4
    assert str(home / "cache" / "edgedec" / "prefixes") in first.err
    assert "`edgedec kept`" not in cli(*options).err
    assert revealing(home, small_bundle)  # the search finds what is there
    rows = {row["kind"]: row for row in cli("kept", "--json").json["kept"]}
    assert rows.keys() == {"prefixes", "sessions", "replays", "stores"}
    kept = [*files_under(home / "cache" / "edgedec" / "prefixes"), session, replay, store]
    assert rows["prefixes"]["n_files"] == len(kept) - 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert cli("kept", "sessions", "--clear").exit_code == 0
    assert not session.exists()
    assert replay.exists()
    assert "removed" in cli("kept", "--clear").out
    assert [path for path in kept if path.exists()] == []
    assert revealing(home, small_bundle) == []
    assert "nothing is kept" in cli("kept").out


def test_a_file_that_was_replaced_stays(cli: Cli, home: Path, tmp_path: Path) -> None:
    path = tmp_path / "talk.session"
    places.remember("sessions", path, "one context")
    path.write_text("something dear", encoding="utf-8")
    folder = tmp_path / "learned"
    folder.mkdir()
    (folder / "offers.json").write_text("{}", encoding="utf-8")
    (folder / "thesis.txt").write_text("something dear", encoding="utf-8")
    places.remember("learned", folder, "8 MB")
    listed = cli("kept", "--clear").out
    assert str(folder) in listed
    assert str(path) not in listed
    assert path.read_text(encoding="utf-8") == "something dear"
    assert [one.name for one in folder.iterdir()] == ["thesis.txt"]


def test_a_file_that_was_refused_is_no_place(
    cli: Cli, small_bundle: Path, home: Path, tmp_path: Path
) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("something dear", encoding="utf-8")
    for option in ("--store", "--session", "--adapt"):
        refused = cli("run", small_bundle, "Hi", "-n", 2, option, path)
        assert refused.error
        assert "`edgedec kept`" not in refused.err
    assert "nothing is kept" in cli("kept").out
    assert not (home / "state" / "edgedec" / "kept.json").exists()


def test_kinds_and_a_broken_register(cli: Cli, home: Path) -> None:
    assert "expected prefixes, sessions" in cli("kept", "diaries").err
    register = home / "state" / "edgedec" / "kept.json"
    register.parent.mkdir(parents=True)
    for text in ("", "[1]", '{"a": 1}', '[{"kind": "prefixes"}]'):
        register.write_text(text, encoding="utf-8")
        assert "nothing is kept" in cli("kept").out
