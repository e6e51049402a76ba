"""Suggestions while typing, over a model that knows one text by heart."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import replace

import numpy as np
import pytest

from edgedec.autocomplete import AutocompleteConfig, Autocompleter, Document, Offer, autocompleter
from edgedec.models.errors import ConfigError, SessionError
from edgedec.runtime.backends import running_passes as running_passes
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.stream import Stream
from edgedec.runtime.sequences.prefill import Progress
from edgedec.runtime.text.tokenizer import Tokenizer

from ..runtime.conftest import ToyModel
from .typing_parts import TEXT, HeldPasses, Maker, at, knowing, offered


def test_offers_the_rest_of_the_line(engine: Engine) -> None:
    with Autocompleter(engine) as completer:
        offer = completer.update(at(4)).result(timeout=60)
        assert offer is not None
        assert (offer.text, offer.is_complete) == ("quick brown fox", True)
        assert offer.probability > 0.9
        assert offer.ms > 0


def test_suggestions_are_many_short_texts(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[GenerationConfig] = []
    stream = engine.stream

    def recording(prompt: list[int], request: GenerationConfig, on_chunk: Progress) -> Stream:
        requests.append(request)
        return stream(prompt, request, on_chunk)

    monkeypatch.setattr(engine, "stream", recording)
    with Autocompleter(engine) as completer:
        assert offered(completer.update(at(4)))
    assert [request.is_one_of_many for request in requests] == [True]


def test_a_block_goes_to_where_the_model_is_unsure(engine: Engine) -> None:
    config = AutocompleteConfig(is_block=True)
    with Autocompleter(engine, config) as completer:
        assert offered(completer.update(at(4))) == TEXT[4:]


def test_nothing_is_offered_where_the_model_is_unsure(engine: Engine) -> None:
    with Autocompleter(engine) as completer:
        assert completer.update(at(5, "Hello there")).result(timeout=60) is None
    with Autocompleter(engine, AutocompleteConfig(min_probability=0.0)) as completer:
        assert offered(completer.update(at(5, "Hello there")))


def test_typing_what_is_on_offer_computes_nothing(engine: Engine) -> None:
    config = AutocompleteConfig(max_idle_cpu=0.0)
    with Autocompleter(engine, config) as completer:
        assert offered(completer.update(at(4))) == "quick brown fox"
        for cursor in range(5, 15):
            assert offered(completer.update(at(cursor))) == TEXT[cursor:19]
        assert (completer.counts.n_requests, completer.counts.n_agreeing) == (1, 10)


def test_the_next_line_is_there_when_this_one_was_taken(engine: Engine) -> None:
    with Autocompleter(engine, AutocompleteConfig(max_idle_cpu=1.0)) as completer:
        assert offered(completer.update(at(4))) == "quick brown fox"
        assert offered(completer.update(at(19))) == TEXT[19:44]
        assert completer.counts.n_requests == 1


def test_what_is_computed_ahead_has_an_end_until_the_next_key(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autocompleter, "_AHEAD_S", 0.0)
    with Autocompleter(engine, AutocompleteConfig(max_idle_cpu=1.0)) as completer:
        assert offered(completer.update(at(4))) == "quick brown fox"
        assert completer._answer is not None
        assert not completer._answer.is_ended
        assert not completer._has_work
        assert offered(completer.update(at(19))) == TEXT[19:44]
        assert completer.counts.n_requests == 1


def test_another_key_begins_anew_and_cancels(engine: Engine) -> None:
    with Autocompleter(engine) as completer:
        first = completer.update(at(4))
        second = completer.update(Document("T", 1, "b.txt"))
        assert offered(second) == "he quick brown fox"
        assert first.cancelled() or first.done()
        if first.cancelled():
            with pytest.raises(CancelledError):
                first.result()


@pytest.mark.parametrize(("cursor", "whole"), [(6, "The"), (13, "The quick"), (14, "The quick")])
def test_half_words_are_gone_on_with(
    engine: Engine, tokenizer: Tokenizer, cursor: int, whole: str
) -> None:
    """What is typed of a word is no part of the prompt, and no part of what is offered."""
    with Autocompleter(engine, AutocompleteConfig(max_idle_cpu=0.0)) as completer:
        assert offered(completer.update(at(cursor))) == TEXT[cursor:19]
        while not completer.counts.n_prompt:  # counted when the line is whole, a moment later
            time.sleep(0.01)
        assert completer.counts.n_prompt == len(tokenizer.encode(whole))
        assert offered(completer.update(at(cursor + 1))) == TEXT[cursor + 1 : 19]
        assert offered(completer.update(at(cursor - 1))) == TEXT[cursor - 1 : 19]
        assert completer.counts.n_requests == 1
        assert offered(completer.update(Document(TEXT[:cursor] + "x", cursor + 1, "a.txt"))) == ""
        assert completer.counts.n_requests == 2


def test_the_newest_of_many_changes_wins(engine: Engine) -> None:
    with Autocompleter(engine) as completer:
        for _ in range(20):
            for cursor in (1, 9, 4, 16):
                last = completer.update(at(cursor))
        assert offered(last) == TEXT[16:19]


def test_a_key_computes_its_own_token_only(engine: Engine, tokenizer: Tokenizer) -> None:
    config = AutocompleteConfig(max_idle_cpu=0.0, min_probability=1.0)
    text = "one two three four five six "
    with Autocompleter(engine, config) as completer:
        completer.update(Document(text, len(text))).result(timeout=60)
        before = completer.counts.n_prompt - completer.counts.n_reused
        completer.update(Document(text + "7", len(text) + 1)).result(timeout=60)
        after = completer.counts.n_prompt - completer.counts.n_reused
    assert before == len(tokenizer.encode(text.rstrip()))
    assert after - before <= 2


def test_offers_grow_in_the_callers_ears(engine: Engine) -> None:
    heard: list[Offer] = []
    done = threading.Event()

    def hear(offer: Offer | None) -> None:
        assert offer is not None
        heard.append(offer)
        if offer.is_complete:
            done.set()

    with Autocompleter(engine, AutocompleteConfig(max_idle_cpu=0.0), hear) as completer:
        completer.update(at(4))
        assert done.wait(60)
    texts = [offer.text for offer in heard]
    assert texts[-1] == "quick brown fox"
    assert all("quick brown fox".startswith(text) for text in texts)


def test_dismissing_offers_nothing_until_the_next_key(engine: Engine) -> None:
    with Autocompleter(engine) as completer:
        future = completer.update(at(4))
        completer.dismiss()
        assert future.done()
        assert offered(completer.update(at(5))) == TEXT[5:19]


def test_a_pause_computes_nothing_and_goes_on_where_it_was(
    make_engine: Maker, tokenizer: Tokenizer
) -> None:
    passes = threading.Semaphore(0)
    with make_engine(knowing(TEXT, tokenizer)) as engine:
        model = engine.model
        assert isinstance(model, ToyModel)

        def hold() -> None:
            passes.acquire(timeout=60)

        model.before_pass = hold
        with Autocompleter(engine, AutocompleteConfig(max_idle_cpu=0.0)) as completer:
            future = completer.update(at(4))
            for _ in range(3):
                passes.release()
            completer.pause()
            assert future.cancelled()
            for _ in range(99):
                passes.release()
            time.sleep(0.1)
            assert model.n_passes <= 4  # one was under way
            assert offered(completer.update(at(6))) == TEXT[6:19]
            assert completer.counts.n_requests == 1


def test_a_long_prompt_that_nobody_wants_any_more_is_read_no_further(
    make_engine: Maker, tokenizer: Tokenizer
) -> None:
    long = "one two three four " * 200
    with make_engine(knowing(TEXT, tokenizer), context=4096) as engine:
        model = engine.model
        assert isinstance(model, ToyModel)
        held = model.before_pass = HeldPasses()
        config = AutocompleteConfig(max_idle_cpu=0.0, method="plain")
        with Autocompleter(engine, config) as completer:
            completer.update(Document(long, len(long)))
            held.began.wait(60)
            wanted = completer.update(at(4))
            held.goes_on.set()
            assert offered(wanted) == "quick brown fox"
            assert completer.counts.n_stopped >= 1
            assert model.n_rows < 128 + 100


class LongPass:
    """The first pass of a toy model, which goes on until another thread ends it."""

    def __init__(self, model: ToyModel) -> None:
        self.has_begun = threading.Event()
        self._is_ended = threading.Event()
        self._model = model
        model.before_pass = self._run

    def end(self) -> None:
        self._is_ended.set()

    def _run(self) -> None:
        self._model.before_pass = lambda: None
        running_passes.begin(self)
        self.has_begun.set()
        is_ended = self._is_ended.wait(60)
        running_passes.finish(self)
        assert is_ended, "nobody ended it"
        raise KeyboardInterrupt


Act = Callable[[Autocompleter], Future[Offer | None] | None]


@pytest.mark.parametrize(
    ("act", "offer"),
    [
        (lambda completer: completer.update(replace(at(25), name="b.txt")), TEXT[25:44]),
        (lambda completer: completer.dismiss(), None),
        (lambda completer: completer.close(), None),
        (lambda completer: running_passes.end_passes() and None, TEXT[4:19]),  # by mistake
    ],
)
def test_a_pass_that_nobody_wants_is_ended_in_the_midst_of_it(
    engine: Engine, act: Act, offer: str | None
) -> None:
    assert isinstance(engine.model, ToyModel)
    first = LongPass(engine.model)
    with Autocompleter(engine, AutocompleteConfig(max_idle_cpu=0.0, method="plain")) as completer:
        before = completer.update(at(4))
        assert first.has_begun.wait(60)
        after = act(completer) or before
        if offer is None:
            assert before.cancelled()
        else:
            assert offered(after) == offer
            assert completer.counts.n_stopped == 1
            assert len(completer.counts.cancel_ms) == (after is not before)


@pytest.mark.slow
def test_a_pass_that_may_bring_what_was_typed_meanwhile_goes_on(engine: Engine) -> None:
    assert isinstance(engine.model, ToyModel)
    passes: list[SlowPass] = []
    engine.model.before_pass = lambda: passes.append(SlowPass(0.2)) or passes[-1].run()
    with Autocompleter(engine, AutocompleteConfig(max_idle_cpu=0.0, method="plain")) as completer:
        completer.update(at(3))
        while not passes:
            time.sleep(0.001)
        assert offered(completer.update(at(4))) == TEXT[4:19]
        assert not passes[0].is_ended.is_set()


def test_a_long_prompt_is_read_on_whatever_is_typed_meanwhile(make_engine: Maker) -> None:
    long = "one two three four " * 40
    with make_engine(context=4096) as engine:
        model = engine.model
        assert isinstance(model, ToyModel)
        passes: list[SlowPass] = []
        duration_s = 0.03
        model.before_pass = lambda: passes.append(SlowPass(duration_s)) or passes[-1].run()
        config = AutocompleteConfig(max_idle_cpu=0.0, method="plain")
        with Autocompleter(engine, config) as completer:
            for n in range(1000):
                completer.update(Document(long + n * "x", len(long) + n))
                time.sleep(0.02)  # less than a pass takes
                if model.n_rows > 200:
                    break
            assert model.n_rows > 200
            assert not any(one.is_ended.is_set() for one in passes)
            duration_s = 60
            other = "four three two one " * 40
            completer.update(Document(other, len(other)))
            while passes[-1].duration_s < duration_s or passes[-1].is_ended.is_set():
                time.sleep(0.001)
            completer.update(Document("", 0))
            assert passes[-1].is_ended.wait(60)


class SlowPass:
    """A pass that takes a while, unless another thread ends it."""

    def __init__(self, duration_s: float) -> None:
        self.is_ended = threading.Event()
        self.duration_s = duration_s

    def end(self) -> None:
        self.is_ended.set()

    def run(self) -> None:
        running_passes.begin(self)
        is_ended = self.is_ended.wait(self.duration_s)
        running_passes.finish(self)
        if is_ended:
            raise KeyboardInterrupt


def test_closed_and_failed_ones_say_so(engine: Engine) -> None:
    completer = Autocompleter(engine)
    completer.close()
    completer.close()
    with pytest.raises(SessionError, match="closed"):
        completer.update(at(4))


def test_a_closed_engine_is_named(make_engine: Maker) -> None:
    engine = make_engine()
    completer = Autocompleter(engine)
    engine.close()
    with pytest.raises(SessionError, match="closed"):
        for _ in range(1000):
            completer.update(at(4)).exception(timeout=60)
    completer.close()


def test_an_empty_document_offers_nothing(engine: Engine) -> None:
    with Autocompleter(engine) as completer:
        assert completer.update(Document("", 0)).result(timeout=60) is None


def test_bad_values_are_named() -> None:
    with pytest.raises(ConfigError, match="cursor is at 3, expected 0 to 2"):
        Document("ab", 3)
    with pytest.raises(ConfigError, match="n_before of autocomplete is 0"):
        AutocompleteConfig(n_before=0)
    with pytest.raises(ConfigError, match="max_idle_cpu of autocomplete is 2"):
        AutocompleteConfig(max_idle_cpu=2)


def test_a_key_while_the_prompt_is_read_is_answered(
    make_engine: Maker, tokenizer: Tokenizer
) -> None:
    with make_engine(knowing(TEXT, tokenizer)) as engine:
        model = engine.model
        assert isinstance(model, ToyModel)
        held = model.before_pass = HeldPasses()
        with Autocompleter(engine, AutocompleteConfig(max_idle_cpu=0.0)) as completer:
            completer.update(at(3))
            held.began.wait(60)
            wanted = completer.update(at(4))  # which the model will agree with
            held.goes_on.set()
            assert offered(wanted) == "quick brown fox"


def test_offers_say_who_wrote_them(engine: Engine, cheap_rows: None) -> None:
    config = AutocompleteConfig(max_idle_cpu=0.0, method="lookup")
    with Autocompleter(engine, config) as completer:
        offer = completer.update(at(49)).result(timeout=60)  # a line as the first one
        assert offer is not None
        assert "".join(text for text, _ in offer.parts) == offer.text == "quick brown fox"
        assert {origin for _, origin in offer.parts} == {"target", "lookup"}
        completer.dismiss()
        completer.update(at(4)).result(timeout=60)
        counts = completer.counts
        assert counts.origins.total() >= counts.origins["lookup"] == counts.n_accepted > 0
        assert counts.n_drafted >= counts.n_accepted


@pytest.mark.parametrize(("least", "n_letters"), [(0.3, 3), (0.5, 1), (0.2, 4)])
def test_an_offer_ends_before_it_is_likely_to_be_wrong(
    make_engine: Callable[..., Engine], tokenizer: Tokenizer, least: float, n_letters: int
) -> None:
    """Each letter has probability 0.7: three are right with 0.34, four with 0.24."""
    letter = tokenizer.encode("b")[0]
    row = np.full(tokenizer.vocab_size, math.log(0.3 / (tokenizer.vocab_size - 1)), np.float32)
    row[letter] = math.log(0.7)
    config = AutocompleteConfig(max_idle_cpu=0.0, max_new_tokens=9, min_probability=least)
    with make_engine(lambda prefix: row) as engine, Autocompleter(engine, config) as completer:
        offer = completer.update(Document("a ", 2)).result(timeout=60)
        assert offer is not None
        assert offer.text == "b" * n_letters
        assert offer.probability == pytest.approx(0.7**n_letters, rel=1e-4)
