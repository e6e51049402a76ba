"""What is written is kept for a draft head to learn from: enough of it, in one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgedec.autocomplete import AutocompleteConfig, Autocompleter, Document
from edgedec.autocomplete.document import Window
from edgedec.autocomplete.written_texts import WrittenTexts
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.replay_buffer import ReplayBuffer
from edgedec.runtime.opening.load import load

VOCAB = 1000


@pytest.fixture
def buffer(tmp_path: Path) -> ReplayBuffer:
    return ReplayBuffer(tmp_path / "my.replay", "a")


def written(buffer: ReplayBuffer) -> WrittenTexts:
    return WrittenTexts(buffer, lambda window: list(window.before.encode()))


def window(before: str, name: str = "a.txt", start: int = 0) -> Window:
    return Window(name, start, before, "")


def kept(buffer: ReplayBuffer) -> list[str]:
    return [bytes(text).decode() for text in buffer.texts(VOCAB)]


def test_a_text_is_kept_each_400_characters(buffer: ReplayBuffer) -> None:
    texts = written(buffer)
    for n in range(1, 1000):
        texts.write(window("x" * n))
    assert [len(text) for text in kept(buffer)] == [512, 401]  # the latest tokens of each


def test_what_was_there_already_counts_for_nothing(buffer: ReplayBuffer) -> None:
    texts = written(buffer)
    texts.write(window("y" * 3000))
    texts.write(window("z" * 500, "b.txt"))
    texts.write(window("z" * 579, "b.txt"))
    texts.close()
    assert not buffer.path.exists()


def test_whoever_turns_elsewhere_has_written_enough_with_80(buffer: ReplayBuffer) -> None:
    texts = written(buffer)
    texts.write(window("a"))
    texts.write(window("a" * 81))
    texts.write(window("b", "b.txt"))
    texts.write(window("b" * 90, "b.txt"))
    texts.close()
    texts.close()
    assert kept(buffer) == ["b" * 90, "a" * 81]


def test_a_file_that_is_no_buffer_ends_no_suggestions(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    texts = written(ReplayBuffer(path, "a"))
    texts.write(window("a"))
    texts.write(window("a" * 500))
    assert path.read_text() == "mine"


@pytest.mark.slow
def test_an_autocompleter_keeps_what_is_written(small_bundle: Path, tmp_path: Path) -> None:
    text = "Rivers begin in mountains, where it rains much, and end in the sea. " * 8
    replay = ReplayBuffer.made(tmp_path / "my.replay", small_bundle)
    config = AutocompleteConfig(max_new_tokens=2, max_idle_cpu=0.0)
    with load(small_bundle) as engine:
        with Autocompleter(engine, config, replay=replay) as completer:
            for end in (10, 200, 390, len(text)):
                completer.update(Document(text[:end], end, "a.txt")).result(timeout=60)
        assert _texts(engine, replay) == [text]


def _texts(engine: Engine, replay: ReplayBuffer) -> list[str]:
    size = engine.tokenizer.vocab_size
    return [engine.tokenizer.decode(ids) for ids in replay.texts(size)]
