"""`edgedec bench --typing`: what is counted, against a model that knows the text by heart."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from untrained_head import write_untrained_head

from edgedec.apps.bench import typing_job
from edgedec.apps.bench.keystrokes import (
    DEVIATION_S,
    MEAN_S,
    Passage,
    is_taken,
    key_times,
    read_passages,
)
from edgedec.apps.bench.typing_job import type_passage
from edgedec.apps.bench.typing_rivals import requests_of
from edgedec.apps.peers import PEERS, Runtime
from edgedec.autocomplete import AutocompleteConfig, Autocompleter, Document, Offer
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.errors import ConfigError
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.text.tokenizer import Tokenizer

from ..runtime.conftest import Row, backend, make_engine, one_hot, tokenizer, trained
from .conftest import Cli

__all__ = ["backend", "make_engine", "tokenizer", "trained"]

TEXT = "one two three four\nfive six seven eight\nnine ten\n"


def knowing(text: str, codec: Tokenizer) -> Callable[[Sequence[int]], Row]:
    def rule(prefix: Sequence[int]) -> Row:
        read = codec.decode(prefix)
        rest = text[len(read) :] if text.startswith(read) else ""
        row: Row = one_hot(codec.vocab_size, codec.encode(rest or "x")[0]) * (9 if rest else 0.01)
        return row

    return rule


class Resting(Autocompleter):
    """Tells when it has nothing to do; the newest of them is waited for."""

    newest: Resting

    def __init__(self, *arguments: Any) -> None:
        self._rests = threading.Event()
        Resting.newest = self
        super().__init__(*arguments)

    def update(self, document: Document) -> Future[Offer | None]:
        with self._changed:
            self._rests.clear()
            return super().update(document)

    def _take(self) -> bool:
        with self._changed:
            if not self._has_work:
                self._rests.set()
        return super()._take()

    @staticmethod
    def rest(_: float) -> None:
        assert Resting.newest._rests.wait(60)


@pytest.fixture
def completers(monkeypatch: pytest.MonkeyPatch) -> type[Resting]:
    """Has the bench make autocompleters that can be waited for."""
    monkeypatch.setattr(typing_job, "Autocompleter", Resting)
    return Resting


class Awaited(Autocompleter):
    """Has nobody type on before something is on offer, or nothing will be."""

    def update(self, document: Document) -> Future[Offer | None]:
        offer = super().update(document)
        offer.result(60)
        return offer


@pytest.fixture
def awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the bench press each key as soon as the one before is answered, not when people do."""
    monkeypatch.setattr(typing_job, "Autocompleter", Awaited)
    monkeypatch.setattr(typing_job, "key_times", lambda n, seed: repeat(0.0, n))


def test_one_key_takes_a_line_that_is_right(
    make_engine: Callable[..., Engine], tokenizer: Tokenizer, completers: type[Resting]
) -> None:
    passage = Passage("a.txt", TEXT[:4], TEXT[4:40], "")
    config = AutocompleteConfig(method="plain", max_idle_cpu=1.0)
    with make_engine(knowing(TEXT, tokenizer)) as engine:
        typed = type_passage(engine, config, passage, 0, wait=completers.rest)
    assert typed.n_characters == 36
    assert typed.n_keys < 8  # a key for each line, and its end
    assert typed.n_offers - 1 == typed.n_taken == typed.n_exact == typed.similarity.count(1)
    assert len(typed.first_ms) >= typed.n_offers
    assert typed.counts.n_updates == typed.n_keys == len(typed.counts.wait_ms)
    assert 0 < typed.counts.n_shown <= typed.counts.n_computed


def test_suggestions_that_are_wrong_save_nothing(
    make_engine: Callable[..., Engine], tokenizer: Tokenizer, completers: type[Resting]
) -> None:
    passage = Passage("a.txt", TEXT[:4], "never seen", "")
    config = AutocompleteConfig(method="plain")
    with make_engine(knowing(TEXT, tokenizer)) as engine:
        typed = type_passage(engine, config, passage, 0, wait=completers.rest)
    assert (typed.n_keys, typed.n_characters, typed.n_taken, typed.n_exact) == (10, 10, 0, 0)
    assert typed.counts.n_shown < typed.counts.n_computed


def test_times_between_keys_are_those_of_the_study() -> None:
    times = list(key_times(20_000, 1))
    assert statistics.mean(times) == pytest.approx(MEAN_S, rel=0.02)
    assert statistics.stdev(times) == pytest.approx(DEVIATION_S, rel=0.05)
    assert list(islice(key_times(5, 1), 5)) == times[:5]
    assert is_taken("two ", "two three")
    assert not is_taken("t", "two three")
    assert not is_taken("two four", "two three")


def test_passages_are_lines_from_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {i}\n" for i in range(60)))
    (passage,) = read_passages([path], 50)
    assert passage.before.endswith("\n")
    assert passage.before + passage.typed + passage.behind == path.read_text()
    assert len(passage.typed) == 50
    with pytest.raises(ConfigError, match="has 470 characters, expected at least"):
        read_passages([path], 400)
    path.write_bytes(b"\xff\xfe" * 100)
    with pytest.raises(ConfigError, match="expected a UTF-8 text file"):
        read_passages([path], 5)


ADAPTER = """
class Model:
    facts = {'n_drafted': 4}
    n_asked = 0
    def __init__(self, spec):
        self.held = []
    def decode(self, depth, n):
        return 0.01
    def go_on(self, ids, n, mode, n_drafted):
        self.n_asked += 1
        if self.n_asked == 1:
            self.first = ids
        assert ids[:10] == self.first[:10] and mode == 'lookup'
        return [1] * n, 0.5, 1.0
def open_model(spec):
    return Model(spec)
"""


@pytest.mark.e2e
@pytest.mark.usefixtures("awaited")
def test_peers_answer_the_same_requests(
    cli: Cli,
    small_bundle: Path,
    smollm2_gguf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adapter, path = tmp_path / "adapter.py", tmp_path / "notes.txt"
    adapter.write_text(ADAPTER)
    fake = Runtime("llama.cpp", str(adapter), (), ("plain", "lookup"), keeps_prompts=True)
    monkeypatch.setitem(PEERS, "llama.cpp", fake)
    path.write_text("One, two, three, four, five, six, seven, eight.\n" * 30)
    typing = ("bench", small_bundle, "--typing", path, "--typed-keys", 12)
    asked = (*typing, "--model", smollm2_gguf)
    plot = tmp_path / "latency.png"
    found = cli(*asked, "--against", "llama.cpp+lookup", "-o", "json", "--plot", plot).json
    own, peer = found["against"]
    assert [own["name"], peer["name"]] == ["edgedec", "llama.cpp+lookup"]
    assert 1 < own["n_requests"] == peer["n_requests"] <= 12
    assert own["first_times_ours"] == own["line_times_ours"] == own["same_share"] == 1
    assert (peer["first_ms_p50"], peer["line_ms_p95"], peer["same_share"]) == (500, 1500, 0)
    assert np.isclose(peer["first_times_ours"], 500 / own["first_ms_p50"])
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "openvino cannot keep what it has read" in cli(*asked, "--against", "openvino").error


@pytest.mark.e2e
@pytest.mark.usefixtures("awaited")
def test_a_head_is_compared_with_none(
    cli: Cli, small_model: Path, small_bundle: Path, tmp_path: Path
) -> None:
    bundle, head, path = (tmp_path / name for name in ("b.edgedec", "h.safetensors", "notes.txt"))
    write_untrained_head(head, small_bundle)
    export(ExportConfig(str(small_model), bundle, head=head))
    path.write_text("One, two, three, four, five, six, seven, eight.\n" * 30)
    typing = "--typing", path, "--typed-keys", 12
    found = cli("bench", bundle, *typing, "-o", "json").json
    own, bare = found["against"]
    assert [own["name"], bare["name"]] == ["edgedec", "edgedec without the head"]
    assert own["n_requests"] == bare["n_requests"] > 1
    assert bare["same_share"] == 1  # drafts never change the text
    assert bare["line_times_ours"] == bare["line_ms_p50"] / own["line_ms_p50"]
    assert "| edgedec without the head |" in cli("bench", bundle, *typing).out
    assert cli("bench", small_bundle, *typing, "-o", "json").json["against"] == []


def test_requests_are_those_of_the_keys_that_change_the_prompt(
    make_engine: Callable[..., Engine], tokenizer: Tokenizer, completers: type[Resting]
) -> None:
    passage = Passage("a.txt", "One two ", "three four", " five")
    config = AutocompleteConfig(n_before=64, n_after=8, max_new_tokens=8)
    with make_engine() as engine:
        found = requests_of(engine, config, [passage])
    assert [tokenizer.decode(one) for one in found] == ["One two", "One two three"]


@pytest.mark.slow
@pytest.mark.usefixtures("awaited")
def test_the_report_has_a_row_for_each_method(cli: Cli, small_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("One, two, three, four, five, six, seven, eight.\n" * 30)
    asked = ("bench", small_bundle, "--typing", path, "--typed-keys", 30)
    found = cli(*asked, "--typing-methods", "plain,lookup", "-o", "json").json
    assert [row["method"] for row in found["rows"]] == ["plain", "lookup"]
    for row in found["rows"]:
        assert row["n_characters"] == 30
        assert 0 <= row["saved_share"] < 1
        assert 0 < row["first_ms_p50"] <= row["first_ms_p95"] <= row["first_ms_p99"]
        assert np.isclose(row["saved_share"], 1 - row["n_keys"] / 30)
    assert "| plain" in cli(*asked, "--min-probability", 0.9, "--typing-methods", "plain").out
    assert "--rows cannot be combined with --typing" in cli(*asked, "-m", "4").error
    assert "--typed-keys needs --typing" in cli("bench", small_bundle, "--typed-keys", 3).error
