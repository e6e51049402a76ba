"""What becomes of offers is learned: in the threshold and the n-gram store."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from edgedec.autocomplete import AutocompleteConfig, Autocompleter, LearnedOffers
from edgedec.autocomplete.document import Window
from edgedec.autocomplete.journal import Journal
from edgedec.models.errors import ConfigError
from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.text.tokenizer import Tokenizer

from .typing_parts import TEXT, at, knowing, offered

SHA = "00" * 32


def test_offers_that_are_wrong_raise_the_threshold_and_silence_lowers_it() -> None:
    learned = LearnedOffers()
    assert learned.threshold(0.4) == 0.4
    for _ in range(40):
        learned.note(0.52, 0)
        learned.note(0.72, 12)
    assert learned.threshold(0.4) == pytest.approx(0.55)
    assert learned.threshold(0.6) == 0.6
    for _ in range(2000):
        learned.note(0.95, 12)
    assert learned.threshold(0.4) == 0.4  # and is tried again
    assert learned.n_offers < 1001


def test_a_few_wrong_ones_teach_nothing_and_right_ones_make_up_for_them() -> None:
    learned = LearnedOffers()
    for _ in range(19):
        learned.note(0.5, 0)
    assert learned.threshold(0.4) == 0.4
    for _ in range(19):
        learned.note(0.5, 5)
    assert learned.threshold(0.4) == 0.4


def test_the_file_is_its_owners_and_small(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "offers.json"
    learned = LearnedOffers(path)
    for i in range(5000):
        learned.note(i % 100 / 100, i % 30)
    learned.write()
    learned.write()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_size < 4096
    assert [one.name for one in path.parent.iterdir()] == ["offers.json"]
    assert LearnedOffers(path).threshold(0.1) == learned.threshold(0.1)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"version": 1}', json.dumps({"version": 2, "n_right": [], "n_wrong": []}),
     json.dumps({"version": 2} | dict.fromkeys(("n_characters", "n_right", "n_wrong"), [-1] * 20))],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "offers.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"offers\.json"):
        LearnedOffers(path)


def window(before: str, start: int = 0) -> Window:
    return Window("a.txt", start, before, "")


def test_an_offer_is_right_if_it_is_written_by_whatever_keys(tokenizer: Tokenizer) -> None:
    learned, lines = LearnedOffers(), list[str]()
    journal = Journal(learned, tokenizer, lambda tokens: lines.append(tokenizer.decode(tokens)))
    journal.write(window("one\nT"))
    journal.offer(window("one\nT"), "he fox", 0.6)  # right, key by key
    for text in ("one\nTh", "one\nThe f"):
        journal.write(window(text))
        journal.offer(window(text), ("one\nThe fox")[len(text) :], 0.6)
    journal.write(window("one\nThe fox"))
    assert (sum(learned._n_characters), sum(learned._n_right)) == (6, 1)
    journal.offer(window("one\nThe fox"), " is red", 0.6)  # wrong
    journal.write(window("one\nThe fox i"))
    journal.write(window("one\nThe fox it"))
    assert sum(learned._n_wrong) == 1
    journal.write(window("one\nThe fox it is\n"))
    journal.offer(window("one\nThe fox it is\n"), "x", 0.6)  # lost sight of
    journal.write(window("other", start=7))
    journal.write(window("one\nThe fox it is\nx"))
    assert learned.n_offers < 2
    journal.close()
    assert lines == ["one\nThe fox it is\n"]


def test_what_was_typed_where_something_was_offered_is_in_the_store(
    make_engine: Callable[..., Engine], tokenizer: Tokenizer, tmp_path: Path
) -> None:
    store = NgramStore.open(tmp_path / "store", SHA)
    learned = LearnedOffers(tmp_path / "offers.json")
    config = AutocompleteConfig(max_idle_cpu=0.0, method="plain")
    with make_engine(knowing(TEXT, tokenizer), store=store, is_store_growing=False) as engine:
        with Autocompleter(engine, config, learned=learned) as completer:
            assert offered(completer.update(at(4))) == "quick brown fox"
            completer.update(at(19)).exception(timeout=60)  # taken
            completer.update(at(20)).exception(timeout=60)
            assert store.n_tokens == 0
        line = tokenizer.encode(TEXT[:20])
        assert store.n_tokens == len(line) + 1
        assert store.query(line[:4], 3).length >= 2
    assert LearnedOffers(tmp_path / "offers.json").n_offers == 1


def test_what_was_learned_is_asked_for(
    make_engine: Callable[..., Engine], tokenizer: Tokenizer
) -> None:
    learned = LearnedOffers()
    for _ in range(40):
        learned.note(0.7, 0)
    with make_engine(knowing(TEXT, tokenizer)) as engine:  # whose sureness is less than one
        config = AutocompleteConfig(max_idle_cpu=0.0, method="plain", min_probability=0.1)
        with Autocompleter(engine, config, learned=learned) as completer:
            assert completer._asked_config.min_probability == 0.75
        with Autocompleter(engine, config) as completer:
            assert completer._asked_config.min_probability == 0.1
