"""What is kept of a user's texts: nothing unasked; what was asked for is listed and removed."""

from __future__ import annotations

import io
import json
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.apps.kept import places
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


def test_kinds_and_a_broken_register(cli: Cli, home: Path) -> None:
    assert "expected prefixes, sessions" in cli("kept", "diaries").err
    register = home / "state" / "edgedec" / "kept.json"
    register.parent.mkdir(parents=True)
    for text in ("", "[1]", '{"a": 1}', '[{"kind": "prefixes"}]'):
        register.write_text(text, encoding="utf-8")
        assert "nothing is kept" in cli("kept").out
