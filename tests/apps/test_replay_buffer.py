"""Texts that a draft head learns from: which are kept, for how long, and who may read them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from edgedec.models.errors import ConfigError
from edgedec.runtime.engine import replay_buffer
from edgedec.runtime.engine.replay_buffer import LONGEST, ReplayBuffer

from .conftest import Cli

VOCAB = 4000
PLAIN, DRAFTED = "target", "eagle"


@pytest.fixture
def buffer(tmp_path: Path) -> ReplayBuffer:
    return ReplayBuffer(tmp_path / "my.replay", "a")


def test_a_text_ends_where_nothing_was_drafted(buffer: ReplayBuffer) -> None:
    assert buffer.add([1, 2, 3, 4, 5, 6], (PLAIN, DRAFTED, PLAIN, DRAFTED))
    assert buffer.add(range(2000), (PLAIN, PLAIN))
    assert buffer.texts(VOCAB) == [list(range(2000 - LONGEST, 2000)), [1, 2, 3, 4, 5]]


def test_a_text_that_was_all_drafted_is_not_kept(buffer: ReplayBuffer) -> None:
    assert not buffer.add([1, 2, 3], (PLAIN, DRAFTED))
    assert not buffer.path.exists()


def test_only_its_owner_reads_it(buffer: ReplayBuffer) -> None:
    buffer.add([1, 2], (PLAIN, PLAIN))
    assert buffer.path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in buffer.path.parent.iterdir()] == ["my.replay"]


@pytest.mark.slow
def test_the_oldest_go_first(buffer: ReplayBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_buffer, "MAX_TOKENS", 100)
    sizes = []
    for i in range(200):
        buffer.add([i] * 30, (PLAIN, PLAIN))
        sizes.append(buffer.path.stat().st_size)
    assert [text[0] for text in buffer.texts(VOCAB)] == [199, 198, 197]
    assert sizes[-1] == sizes[20]


def test_ids_of_another_tokenizer_are_left_alone(buffer: ReplayBuffer) -> None:
    other = ReplayBuffer(buffer.path, "b")
    buffer.add([1, 2], (PLAIN, PLAIN))
    other.add([3, 4], (PLAIN, PLAIN))
    assert (buffer.texts(VOCAB), other.texts(VOCAB)) == ([[1, 2]], [[3, 4]])


@pytest.mark.parametrize("stored", [b"\x01\0\0", b"\xff\xff\xff\xff", b"\xa0\x0f\0\0", 7, "text"])
def test_ids_that_are_none(buffer: ReplayBuffer, stored: object) -> None:
    buffer.add([1, 2], (PLAIN, PLAIN))
    with sqlite3.connect(buffer.path) as database:
        database.execute("UPDATE texts SET tokens = ?", (stored,))
    with pytest.raises(ConfigError, match="is damaged"):
        buffer.texts(VOCAB)


def test_other_files_are_refused_and_untouched(buffer: ReplayBuffer) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        buffer.texts(VOCAB)
    assert not buffer.path.exists()
    buffer.path.write_bytes(b"a letter to somebody" * 100)
    with pytest.raises(ConfigError, match=r"cannot use .* as a replay buffer"):
        buffer.add([1, 2], (PLAIN, PLAIN))
    assert buffer.path.read_bytes() == b"a letter to somebody" * 100
    buffer.path.unlink()
    with sqlite3.connect(buffer.path) as database:
        database.execute("CREATE TABLE texts (mine TEXT)")
    content = buffer.path.read_bytes()
    with pytest.raises(ConfigError, match="is not a replay buffer"):
        buffer.add([1, 2], (PLAIN, PLAIN))
    assert buffer.path.read_bytes() == content
    with pytest.raises(ConfigError, match=r"cannot open .*: Is a directory"):
        ReplayBuffer(buffer.path.parent, "a").texts(VOCAB)


@pytest.mark.e2e
@pytest.mark.parametrize("verb", ["run", "chat"])
def test_a_file_that_cannot_be_kept_in_is_refused_before_anything_is_said(
    cli: Cli, smollm2_bundle: Path, tmp_path: Path, verb: str
) -> None:
    (other := tmp_path / "notes.txt").write_text("my notes\n")
    asked = (verb, smollm2_bundle, *(("Hi", "-n", 2) if verb == "run" else ()), "--adapt")
    assert "notes.txt as a replay buffer: file is not" in cli(*asked, other).error
    assert "nowhere/a: No such file" in cli(*asked, tmp_path / "nowhere" / "a").error
    assert other.read_text() == "my notes\n"
